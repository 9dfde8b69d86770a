"""Trees of draft nodes as tensors: parents first, node 0 is the anchor, -1 marks what is not there.

Letters (docs/glossary.md): B rows, N nodes with the anchor, V vocabulary. Every function is pure, works on
any device, and neither syncs with the host nor returns a shape that depends on data.
"""

from __future__ import annotations

import torch
from torch import Tensor


def used(parents: Tensor) -> Tensor:
    """Which nodes exist: [B, N] bool; the anchor always does."""
    index = torch.arange(parents.shape[1], device=parents.device)
    return (parents >= 0) | (index == 0)


def ancestors(parents: Tensor) -> Tensor:
    """Which nodes each node may see: [B, N, N] bool, entry [b, i, j] when j is i or an ancestor of i.

    Pointer doubling: ceil(log2 N) products, so the cost does not grow with the depth of the tree.
    An unused node sees itself only.
    """
    n = parents.shape[1]
    index = torch.arange(n, device=parents.device)
    reach = (parents[:, :, None] == index) | (index[:, None] == index)
    span = 1
    while span < n:
        step = reach.to(torch.float32)
        reach = torch.bmm(step, step) > 0
        span *= 2
    return reach


def chain_ancestors(parents: Tensor) -> Tensor:
    """`ancestors` for drafts known to be chains in node order; unused nodes see themselves only."""
    n = parents.shape[1]
    index = torch.arange(n, device=parents.device)
    below = index[:, None] >= index
    return (below & used(parents)[:, :, None]) | (index[:, None] == index)


def first_among_siblings(tokens: Tensor, parents: Tensor) -> Tensor:
    """Nodes that do not repeat the token of an earlier sibling: [B, N] bool.

    A repeated sibling can never be reached: its twin takes its place, so rules keep the first one only.
    """
    n = tokens.shape[1]
    index = torch.arange(n, device=tokens.device)
    twin = (parents[:, :, None] == parents[:, None, :]) & (tokens[:, :, None] == tokens[:, None, :])
    earlier = index[:, None] > index
    return ~(twin & earlier & (parents >= 0)[:, :, None]).any(-1)


def deepest(kept: Tensor, reach: Tensor, depth: Tensor) -> Tensor:
    """The deepest node whose whole path is kept: [B] int64.

    kept [B, N] bool (column 0 true), reach [B, N, N] from `ancestors`, depth [B, N] int64. Rules keep at most
    one child of a node, so the deepest node is unique.
    """
    whole = ~(reach & ~kept[:, None, :]).any(-1)
    return torch.where(whole, depth, -1).argmax(-1)


def path_to(node: Tensor, reach: Tensor) -> Tensor:
    """The nodes from the anchor to `node` [B]: [B, N] int64, padded with -1 on the right."""
    rows = torch.arange(node.shape[0], device=node.device)
    on_path = reach[rows, node]
    n = on_path.shape[1]
    index = torch.arange(n, device=node.device)
    order = torch.where(on_path, index, n).sort(-1).values
    return torch.where(order == n, -1, order)
