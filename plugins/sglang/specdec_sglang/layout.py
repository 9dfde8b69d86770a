"""A draft in the forms an attention backend and a grammar read: positions, masks, child links. Pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.types import Draft, Verdict


def positions(draft: Draft, cached: Tensor) -> Tensor:
    """Each node's position in the text [B * N] int64; cached [B]: tokens before the anchor. Unused nodes get its."""
    return (cached[:, None] + draft.depth).flatten()


def visible(draft: Draft) -> Tensor:
    """Which nodes each node attends to [B, N, N] bool; an unused node sees itself and the anchor."""
    eye = torch.eye(draft.nodes, dtype=torch.bool, device=draft.tokens.device)
    seen = draft.ancestors | eye
    seen[:, :, 0] = True
    return seen


def draft_mask(draft: Draft) -> Tensor:
    """The mask among nodes only, flat [B * N * N] bool: what the CPU's verification reads."""
    return visible(draft).flatten()


def full_mask(draft: Draft, cached: Tensor, total: int) -> Tensor:
    """The mask over cached tokens and nodes, rows one after another: flat bool.

    Row b holds N lines of cached[b] + N cells. total: the sum of `cached`, known on the host, so that nothing waits
    for the device.
    """
    rows, nodes = draft.tokens.shape
    device = draft.tokens.device
    width = (cached + nodes).repeat_interleave(nodes)  # of each line
    size = nodes * total + rows * nodes * nodes
    line = torch.arange(rows * nodes, device=device).repeat_interleave(width, output_size=size)
    start = width.cumsum(0) - width
    column = torch.arange(size, device=device) - start[line]
    node = column - cached.repeat_interleave(nodes)[line]
    seen = visible(draft).view(rows * nodes, nodes)
    return torch.where(node < 0, True, seen[line, node.clamp(min=0)])


def child_links(draft: Draft) -> tuple[Tensor, Tensor]:
    """First child and next sibling of each node, -1 where there is none: two [B, N] int64."""
    index = torch.arange(draft.nodes, device=draft.tokens.device)
    none = draft.nodes
    child = (draft.parents[:, None, :] == index[:, None]) & draft.used[:, None, :]
    child[:, :, 0] = False
    first = torch.where(child, index, none).amin(-1)
    same = (draft.parents[:, :, None] == draft.parents[:, None, :]) & draft.used[:, None, :] & draft.used[:, :, None]
    later = same & (index[None, :] > index[:, None]) & (draft.parents[:, :, None] >= 0)
    following = torch.where(later, index, none).amin(-1)
    return torch.where(first < none, first, -1), torch.where(following < none, following, -1)


def accept_index(verdict: Verdict, nodes: int, width: int) -> Tensor:
    """The kept path as rows of the flattened draft, -1 padded: [B, width] int32; `nodes` a row in the draft."""
    rows = torch.arange(len(verdict.accepted), device=verdict.path.device)[:, None]
    path = torch.nn.functional.pad(verdict.path, (0, width - verdict.path.shape[1]), value=-1)
    return torch.where(path >= 0, path + rows * nodes, -1).to(torch.int32)


def following(draft: Draft, verdict: Verdict) -> Tensor:
    """The token that was emitted after each node of the kept path, 0 after others: flat [B * N] int64."""
    emitted = verdict.emitted(draft)
    at = torch.where(verdict.path >= 0, verdict.path, draft.nodes)
    spare = torch.zeros(len(emitted), draft.nodes + 1, dtype=emitted.dtype, device=emitted.device)
    return spare.scatter(1, at, emitted.clamp(min=0))[:, : draft.nodes].flatten()
