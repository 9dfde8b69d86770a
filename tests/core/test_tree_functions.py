"""Tree functions against walks in plain Python."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tree_strategies import parents, path_of, token_trees, used_nodes

from specdec import tree


@given(parents())
def test_ancestors_are_the_nodes_of_a_walk_to_the_anchor(batch: list[list[int]]) -> None:
    reach = tree.ancestors(torch.tensor(batch))
    for row, up in enumerate(batch):
        for node in range(len(up)):
            assert reach[row, node].nonzero()[:, 0].tolist() == path_of(up, node)


@given(parents())
def test_a_node_is_used_when_it_is_the_anchor_or_has_a_parent(batch: list[list[int]]) -> None:
    used = tree.used(torch.tensor(batch))
    assert [row.nonzero()[:, 0].tolist() for row in used] == [used_nodes(up) for up in batch]


@given(st.integers(0, 40), st.data())
def test_chain_ancestors_agree_with_ancestors_on_chains(k: int, data: st.DataObject) -> None:
    counts = torch.tensor(data.draw(st.lists(st.integers(0, k), min_size=1, max_size=4)))
    index = torch.arange(k + 1)
    up = torch.where((index <= counts[:, None]), index - 1, -1)
    assert torch.equal(tree.chain_ancestors(up), tree.ancestors(up))


def test_ancestors_reach_the_anchor_of_a_chain_of_any_length() -> None:
    """Pointer doubling must not stop a step early, at powers of two and beside them."""
    for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65):
        reach = tree.ancestors((torch.arange(n) - 1)[None])
        assert torch.equal(reach[0], torch.ones(n, n).tril().bool()), n


def _kept_path(batch: list[list[int]], data: st.DataObject) -> tuple[Tensor, list[list[int]]]:
    """Keep one path of each row and, at random, nodes that are not connected to it."""
    kept, paths = torch.zeros(len(batch), len(batch[0]), dtype=torch.bool), []
    for row, up in enumerate(batch):
        path = path_of(up, data.draw(st.sampled_from(used_nodes(up))))
        kept[row, path] = True
        for node in used_nodes(up)[1:]:
            if up[node] not in path and node not in path and data.draw(st.booleans()):
                kept[row, node] = True
        paths.append(path)
    return kept, paths


@given(parents(), st.data())
def test_deepest_is_the_end_of_the_kept_path(batch: list[list[int]], data: st.DataObject) -> None:
    """Nodes that a rule kept below a node it refused do not count."""
    up = torch.tensor(batch)
    kept, paths = _kept_path(batch, data)
    reach = tree.ancestors(up)
    depth = torch.where(tree.used(up), reach.sum(-1) - 1, -1)
    assert tree.deepest(kept, reach, depth).tolist() == [path[-1] for path in paths]


@given(parents(), st.data())
def test_path_to_is_the_root_path_padded_with_minus_one(batch: list[list[int]], data: st.DataObject) -> None:
    node = [data.draw(st.sampled_from(used_nodes(up))) for up in batch]
    path = tree.path_to(torch.tensor(node), tree.ancestors(torch.tensor(batch)))
    for row, up in enumerate(batch):
        wanted = path_of(up, node[row])
        assert path[row].tolist() == wanted + [-1] * (len(up) - len(wanted))


@given(token_trees(vocab=2))
def test_first_among_siblings_drops_only_later_twins(drawn: tuple[Tensor, Tensor]) -> None:
    tokens, up = drawn
    first = tree.first_among_siblings(tokens, up)
    for row in range(up.shape[0]):
        seen: set[tuple[int, int]] = set()
        for node, (token, parent) in enumerate(zip(tokens[row].tolist(), up[row].tolist(), strict=True)):
            assert bool(first[row, node]) == (parent < 0 or (parent, token) not in seen)
            seen.add((parent, token))
