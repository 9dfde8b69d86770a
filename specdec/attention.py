"""Attention over slabs: which cached rows a node may see, and the product itself."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.kvcache import Place


def visible(place: Place, ancestors: Tensor, depth: Tensor, window: int | None = None) -> Tensor:
    """Which of the first `span` rows each node may see: [B, N, span] bool.

    All rows before the anchor, and the node's own path among the rows being written. With a sliding `window`, only
    what lies less than `window` positions back; rows are never overwritten, so a wrapped window needs no care.
    ancestors [B, N, N] bool, depth [B, N] int64.
    """
    rows, n = depth.shape
    column = torch.arange(place.span, device=depth.device)
    relative = column - place.start[:, None]
    inside = (relative >= 0) & (relative < n)
    node = relative.clamp(0, n - 1)
    own = ancestors.gather(2, node[:, None].expand(rows, n, place.span)) & inside[:, None]
    seen = own | (relative < 0)[:, None]
    if window is None:
        return seen
    at = torch.where(inside, depth.gather(1, node), relative)
    return seen & (depth[:, :, None] - at[:, None] < window)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as 0 and -inf, with a dimension for heads: [B, 1, N, span]."""
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, -torch.inf).to(dtype)[:, None]


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Softmax attention with grouped heads: q [B, H, N, D], k, v [B, G, L, D], bias [B, 1, N, L] -> [B, H, N, D].

    The heads of a group are folded into the nodes, so keys and values are never repeated.
    """
    rows, heads, n, dim = q.shape
    groups = k.shape[1]
    share = heads // groups
    folded = q.reshape(rows, groups, share * n, dim)
    weights = (folded @ k.transpose(-1, -2)).mul_(scale).view(rows, groups, share, n, -1)
    weights = (weights + bias[:, :, None]).softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(v.dtype)
    return (weights.view(rows, groups, share * n, -1) @ v).view(rows, heads, n, -1)
