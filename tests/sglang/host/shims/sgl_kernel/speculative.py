import torch


def reconstruct_indices_from_tree_mask(
    tree_mask,
    verified_seq_len,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    batch_size,
    draft_token_num,
):
    n, bs = draft_token_num, batch_size
    j = torch.arange(n)
    anc = tree_mask.view(bs, n, n).bool() & (j[None, :] < j[:, None])
    positions.view(bs, n).copy_(anc.sum(-1) + verified_seq_len.view(bs, 1))
    retrieve_index.view(bs, n).copy_(torch.arange(bs * n).view(bs, n))
    parent = torch.where(anc.any(-1), (anc * j).argmax(-1), torch.tensor(-1))
    child = anc.any(1)
    retrieve_next_token.view(bs, n).copy_(torch.where(child, anc.int().argmax(1), torch.tensor(-1)))
    same = (parent[:, :, None] == parent[:, None, :]) & (j[:, None] > j[None, :])[None]
    sib = torch.where(same.any(1), same.int().argmax(1), torch.tensor(-1))
    retrieve_next_sibling.view(bs, n).copy_(torch.where(parent >= 0, sib, torch.tensor(-1)))
