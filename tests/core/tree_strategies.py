"""Random parents-first trees, and walks over them in plain Python."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def parents(draw: st.DrawFn, rows: int | None = None, nodes: int | None = None) -> list[list[int]]:
    """Parents of a batch of trees; a node hangs below a used one or is unused (-1)."""
    rows = rows or draw(st.integers(1, 4))
    nodes = nodes or draw(st.integers(1, 12))
    batch = []
    for _ in range(rows):
        tree = [-1]
        for i in range(1, nodes):
            used = [j for j in range(i) if j == 0 or tree[j] >= 0]
            tree.append(draw(st.sampled_from([-1, *used])))
        batch.append(tree)
    return batch


@st.composite
def token_trees(draw: st.DrawFn, vocab: int = 4) -> tuple[Tensor, Tensor]:
    """Tokens and parents [B, N] of random trees, with repeated siblings."""
    up = draw(parents())
    tokens = [draw(st.lists(st.integers(0, vocab - 1), min_size=len(t), max_size=len(t))) for t in up]
    return torch.tensor(tokens), torch.tensor(up)


def path_of(tree: list[int], node: int) -> list[int]:
    """Walk from a node to the anchor; returns the nodes from the anchor on. An unused node stands alone."""
    path = [node]
    while tree[path[0]] >= 0:
        path.insert(0, tree[path[0]])
    return path


def used_nodes(tree: list[int]) -> list[int]:
    """List the nodes that exist."""
    return [i for i, up in enumerate(tree) if i == 0 or up >= 0]
