"""Pure-torch stand-in for the CPU build of sgl_kernel (test use only).

SGLang with SGLANG_USE_CPU_ENGINE=1 imports these names at module import; the
CPU wheel is not on PyPI.  Deliberately does NOT define
torch.ops.sgl_kernel.convert_weight_packed, so that
sglang.srt.utils.cpu_has_amx_support() is False and every layer takes its
forward_native path.
"""

import ctypes

import torch

__version__ = "99.0.0+shim"


def _slots(start, end):
    return [(int(s), int(e)) for s, e in zip(start.tolist(), end.tolist())]


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    o = 0
    for r, (s, e) in zip(req_pool_indices.tolist(), _slots(start, end)):
        req_to_token[r, s:e] = out_cache_loc[o : o + e - s].to(req_to_token.dtype)
        o += e - s


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    o = 0
    for r, (s, e) in zip(req_pool_indices.tolist(), _slots(start, end)):
        out_cache_loc[o : o + e - s] = req_to_token[r, s:e].to(out_cache_loc.dtype)
        o += e - s


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, num_steps
):
    n = topk * num_steps
    for i, (r, s) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        out_cache_loc[i * n : (i + 1) * n] = req_to_token[r, s : s + n].to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(req_to_token, req_pool_indices, seq_lens, topk, num_steps, pool_len):
    bs = seq_lens.numel()
    out = torch.zeros((bs * topk, pool_len), dtype=req_to_token.dtype)
    for b, (r, s) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        for t in range(topk):
            row = out[b * topk + t]
            row[:s] = req_to_token[r, :s]
            n = min(num_steps, pool_len - s)
            a = s + t * num_steps
            src = req_to_token[r, a : a + n]
            row[s : s + src.numel()] = src
    return out


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    tgt, src = tgt_loc.tolist(), src_loc.tolist()
    for base, st in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(base + s * st, st) for s in src]
        for t, b in zip(tgt, rows):
            ctypes.memmove(base + t * st, b, st)


def rotate_input_ids_cpu(input_ids, start_loc, seq_lens, topk_index, select_index=None):
    sel = None if select_index is None else select_index.tolist()
    for i, (s, n, t) in enumerate(zip(start_loc.tolist(), seq_lens.tolist(), topk_index.flatten().tolist())):
        if n <= 0:
            continue
        input_ids[s : s + n - 1] = input_ids[s + 1 : s + n].clone()
        input_ids[s + n - 1 if sel is None else sel[i]] = t
    return input_ids


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, accept_stride):
    i = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.flatten()[i].to(bonus_tokens.dtype))


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    src = accept_index.flatten()
    src = src[src > -1].long()
    accept_out_cache_loc.view(-1)[: src.numel()] = out_cache_loc[src].to(accept_out_cache_loc.dtype)


def build_tree_kernel_efficient_cpu(
    parent_list,
    selected_index,
    verified_seq_len,
    tree_mask,
    positions,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    topk,
    depth,
    draft_token_num,
    tree_mask_mode,
):
    assert tree_mask_mode in (0, 1), tree_mask_mode
    n, bs = draft_token_num, verified_seq_len.numel()
    mask, pos = tree_mask.view(-1), positions.view(-1)
    ridx, rnext, rsib = (x.view(bs, n) for x in (retrive_index, retrive_next_token, retrive_next_sibling))
    seqs = verified_seq_len.tolist()
    base = 0
    for b in range(bs):
        sel, par, sl = selected_index[b].tolist(), parent_list[b].tolist(), seqs[b]
        row_len = sl + n if tree_mask_mode == 0 else n

        def parent_of(i):  # node i (1..n-1) -> parent node or None
            tb = sel[i - 1] // topk
            if tb == 0:
                return 0
            tok = par[tb]
            return sel.index(tok) + 1 if tok in sel[: n - 1] else None

        ridx[b] = torch.arange(b * n, (b + 1) * n)
        for i in range(n - 1, 0, -1):
            p = parent_of(i)
            if p is None:
                continue
            old = int(rnext[b, p])
            rnext[b, p] = i
            if old != -1:
                rsib[b, i] = old
        for i in range(n):
            row = mask[base + i * row_len : base + (i + 1) * row_len]
            off = row_len - n
            row[off:] = 0
            row[off] = 1
            d, cur = 0, i
            while cur and d < depth:
                row[off + cur] = 1
                d += 1
                nxt = parent_of(cur)
                if nxt is None:
                    break
                cur = nxt
            pos[b * n + i] = sl + d
        base += n * row_len


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    bs, n = candidates.shape
    width = accept_index.shape[1]
    tp = target_predict.flatten().tolist()
    cand, ri = candidates.tolist(), retrive_index.view(bs, n).tolist()
    nt, ns = retrive_next_token.view(bs, n).tolist(), retrive_next_sibling.view(bs, n).tolist()
    for b in range(bs):
        last, cur, acc = ri[b][0], 0, 0
        accept_index[b, 0] = last
        for _ in range(1, width):
            cur = nt[b][cur]
            while cur != -1 and cand[b][cur] != tp[last]:
                cur = ns[b][cur]
            if cur == -1:
                break
            predicts[last] = tp[last]
            acc += 1
            last = ri[b][cur]
            accept_index[b, acc] = last
        accept_token_num[b] = acc
        predicts[last] = tp[last]


# ---- attention: torch.ops.sgl_kernel.{extend,decode}_attention_cpu -------------
def _sdpa(q, k, v, mask, scale, causal_from=None):
    # q [L,H,D], k/v [S,Hk,D]
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0).to(q.dtype),
        v.transpose(0, 1).unsqueeze(0).to(q.dtype),
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.squeeze(0).transpose(0, 1)


def _extend_attention_cpu(
    q,
    k,
    v,
    o,
    k_buffer,
    v_buffer,
    k_scale,
    v_scale,
    req_to_token,
    req_pool_indices,
    seq_lens,
    extend_seq_lens,
    extend_start_loc,
    max_len_extend,
    sm_scale,
    logit_cap,
    is_cross_attn=False,
    sliding_window=0,
    encoder_lens=None,
    sinks=None,
    tree_mask=None,
    is_causal=True,
):
    assert logit_cap == 0 and sinks is None and not is_cross_attn
    bs = seq_lens.numel()
    moff = 0
    for b in range(bs):
        sl, el, st = int(seq_lens[b]), int(extend_seq_lens[b]), int(extend_start_loc[b])
        if el == 0:
            continue
        pre = sl - el
        loc = req_to_token[int(req_pool_indices[b]), :sl].long()
        mask = None
        if is_causal:
            if tree_mask is not None:
                total = tree_mask.numel()
                if total == bs * el * el:  # QLEN_ONLY
                    m = tree_mask[b * el * el : (b + 1) * el * el].view(el, el).bool()
                    mask = torch.cat([torch.ones(el, pre, dtype=torch.bool), m], 1)
                else:  # FULL_MASK
                    mask = tree_mask[moff : moff + el * sl].view(el, sl).bool()
                    moff += el * sl
            else:
                mask = torch.ones(el, sl, dtype=torch.bool).tril(pre)
            if sliding_window > 0:
                qp = torch.arange(pre, sl)[:, None]
                mask = mask & (torch.arange(sl)[None] > qp - sliding_window)
        o[st : st + el] = _sdpa(q[st : st + el], k_buffer[loc], v_buffer[loc], mask, sm_scale)


def _decode_attention_cpu(
    q,
    k_buffer,
    v_buffer,
    k_scale,
    v_scale,
    o,
    key,
    value,
    loc,
    attn_logits,
    req_to_token,
    req_pool_indices,
    seq_lens,
    sm_scale,
    logit_cap,
    is_cross_attn=False,
    sliding_window=0,
    encoder_lens=None,
    sinks=None,
):
    assert logit_cap == 0 and sinks is None and not is_cross_attn
    if key is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for b in range(seq_lens.numel()):
        sl = int(seq_lens[b])
        a = max(0, sl - sliding_window) if sliding_window > 0 else 0
        l = req_to_token[int(req_pool_indices[b]), a:sl].long()
        o[b : b + 1] = _sdpa(q[b : b + 1], k_buffer[l], v_buffer[l], None, sm_scale)


_lib = torch.library.Library("sgl_kernel", "FRAGMENT")
_lib.define(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_buffer, Tensor v_buffer, "
    "float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn=False, int sliding_window=0, Tensor? encoder_lens=None, Tensor? sinks=None, "
    "Tensor? tree_mask=None, bool is_causal=True) -> ()"
)
_lib.define(
    "decode_attention_cpu(Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale, "
    "Tensor(c!) o, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn=False, "
    "int sliding_window=0, Tensor? encoder_lens=None, Tensor? sinks=None) -> ()"
)
_lib.impl("extend_attention_cpu", _extend_attention_cpu, "CPU")
_lib.impl("decode_attention_cpu", _decode_attention_cpu, "CPU")
