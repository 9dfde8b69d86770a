"""Masks, links and indices of random trees equal those worked out node by node."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specdec_sglang import layout
from specdec_sglang.shaping import path_tokens

from specdec.testing import assert_capture_safe
from specdec.types import Draft
from specdec.verifier import verdict_of


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    rows, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    parents = torch.full((rows, nodes), -1)
    for row in range(rows):
        there = [0]
        for node in range(1, nodes):
            if draw(st.booleans()) or draw(st.booleans()):
                parents[row, node] = draw(st.sampled_from(there))
                there.append(node)
    tokens = torch.tensor([[draw(st.integers(0, 9)) for _ in range(nodes)] for _ in range(rows)])
    return Draft(tokens, parents)


def lines(draft: Draft, row: int) -> list[list[int]]:
    """Each node's way up, itself first."""
    found = []
    for node in range(draft.nodes):
        way, at = [], node
        while at >= 0:
            way.append(at)
            at = int(draft.parents[row, at])
        found.append(way)
    return found


@settings(deadline=None)
@given(drafts(), st.data())
def test_masks(draft: Draft, data: st.DataObject) -> None:
    rows, nodes = draft.tokens.shape
    cached = torch.tensor([data.draw(st.integers(0, 5)) for _ in range(rows)])
    full, small = [], []
    for row in range(rows):
        for way in lines(draft, row):
            seen = [node in way or node == 0 for node in range(nodes)]
            small += seen
            full += [True] * int(cached[row]) + seen
    assert layout.draft_mask(draft).tolist() == small
    assert layout.full_mask(draft, cached, int(cached.sum())).tolist() == full
    depths = [len(way) - 1 for row in range(rows) for way in lines(draft, row)]
    at = cached.repeat_interleave(nodes) + torch.tensor(depths)
    assert layout.positions(draft, cached).tolist() == at.tolist()


@settings(deadline=None)
@given(drafts())
def test_links(draft: Draft) -> None:
    first, following = layout.child_links(draft)
    for row in range(len(draft.tokens)):
        parents = draft.parents[row].tolist()
        for node in range(draft.nodes):
            children = [i for i in range(1, draft.nodes) if parents[i] == node]
            assert int(first[row, node]) == (children[0] if children else -1)
            later = [
                i for i in range(node + 1, draft.nodes) if node and parents[node] >= 0 and parents[i] == parents[node]
            ]
            assert int(following[row, node]) == (later[0] if later else -1)


@settings(deadline=None)
@given(drafts(), st.integers(0, 2**31))
def test_what_is_kept(draft: Draft, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    rows, nodes = draft.tokens.shape
    kept = torch.rand(rows, nodes, generator=dice) < 0.7
    whole = draft.pruned(kept | (torch.arange(nodes) == 0)).used
    after = torch.randint(1, 10, (rows, nodes), generator=dice)
    verdict = verdict_of(draft, whole, after)
    index = layout.accept_index(verdict, nodes, 9)
    told = layout.following(draft, verdict)
    emitted = verdict.emitted(draft)
    for row in range(rows):
        path = [int(i) for i in verdict.path[row] if i >= 0]
        assert index[row, : len(path)].tolist() == [row * nodes + i for i in path]
        assert set(index[row, len(path) :].tolist()) <= {-1}
        assert [int(told[i]) for i in index[row, : len(path)].tolist()] == emitted[row, : len(path)].tolist()


def test_paths() -> None:
    draft = Draft(torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[-1, 0, 1, -1, 0]]))
    assert path_tokens(draft, 0) == [[], [6], [6, 7], [], [9]]


def test_nothing_waits_for_a_device() -> None:
    tokens, parents = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[-1, 0, 1, 0]])

    def build(tokens: torch.Tensor, parents: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
        draft = Draft(tokens, parents)
        first, following = layout.child_links(draft)
        return (
            layout.full_mask(draft, cached, 3).sum()
            + first.sum()
            + following.sum()
            + layout.positions(draft, cached).sum()
        )

    assert_capture_safe(build, tokens, parents, torch.tensor([3]))
