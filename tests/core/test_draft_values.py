"""Draft, Verdict and Context: how they are made, cut, joined and carried to the next round."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tree_strategies import parents, path_of, token_trees, used_nodes

from specdec import Context, Draft, Sampling, Scores, Verdict

V = 4


def _q(draft: Draft, seed: int = 0) -> Tensor:
    return torch.rand(*draft.tokens.shape, V, generator=torch.Generator().manual_seed(seed))


def test_a_chain_hangs_each_node_below_the_one_before() -> None:
    draft = Draft.chain(torch.tensor([7, 8]), torch.tensor([[1, 2], [3, 4]]))
    assert draft.tokens.tolist() == [[7, 1, 2], [8, 3, 4]]
    assert draft.parents.tolist() == [[-1, 0, 1]] * 2
    assert draft.linear


def test_counts_leave_the_nodes_past_them_unused() -> None:
    draft = Draft.chain(torch.zeros(3).long(), torch.ones(3, 2).long(), counts=torch.tensor([0, 1, 2]))
    assert draft.parents.tolist() == [[-1, -1, -1], [-1, 0, -1], [-1, 0, 1]]


def test_the_q_of_a_chain_starts_after_the_anchor() -> None:
    q = torch.rand(2, 3, V, generator=torch.Generator().manual_seed(0))
    draft = Draft.chain(torch.zeros(2).long(), torch.zeros(2, 3).long(), q)
    assert draft.q is not None
    assert torch.equal(draft.q[:, 1:], q)
    assert draft.q.shape == (2, 4, V)


def test_a_chain_of_no_tokens_has_a_q_for_its_anchor() -> None:
    """A drafter that found nothing may pass an empty q; rules index it by node."""
    draft = Draft.chain(torch.zeros(2).long(), torch.zeros(2, 0).long(), torch.zeros(2, 0, V))
    assert draft.q is not None
    assert draft.q.shape == (2, 1, V)


def test_the_empty_draft_is_the_anchor_alone() -> None:
    draft = Draft.empty(torch.tensor([3, 4]))
    assert (draft.tokens.tolist(), draft.parents.tolist(), draft.nodes) == ([[3], [4]], [[-1], [-1]], 1)


@given(token_trees())
def test_depth_counts_steps_from_the_anchor(drawn: tuple[Tensor, Tensor]) -> None:
    draft = Draft(*drawn)
    for row, up in enumerate(draft.parents.tolist()):
        assert draft.depth[row].tolist() == [len(path_of(up, node)) - 1 for node in range(draft.nodes)]


@given(token_trees(), st.integers(0, 4))
def test_padding_adds_unused_nodes_and_nothing_else(drawn: tuple[Tensor, Tensor], extra: int) -> None:
    draft = Draft(*drawn)
    draft = Draft(draft.tokens, draft.parents, _q(draft))
    wide = draft.padded(draft.nodes + extra)
    assert wide.q is not None
    assert wide.nodes == wide.q.shape[1] == draft.nodes + extra
    assert not bool(wide.used[:, draft.nodes :].any())
    for name in ("tokens", "parents", "q"):
        assert torch.equal(getattr(wide, name)[:, : draft.nodes], getattr(draft, name))


def test_padding_to_fewer_nodes_changes_nothing() -> None:
    draft = Draft.empty(torch.tensor([3]))
    assert draft.padded(0) is draft


@given(token_trees(), st.data())
def test_pruning_removes_a_node_and_its_descendants(drawn: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    draft = Draft(*drawn)
    bits = st.lists(st.booleans(), min_size=draft.nodes, max_size=draft.nodes)
    keep = torch.tensor([[True, *data.draw(bits)[1:]] for _ in range(draft.tokens.shape[0])])
    pruned = draft.pruned(keep)
    for row, up in enumerate(draft.parents.tolist()):
        left = [i for i in used_nodes(up) if all(keep[row, j] for j in path_of(up, i))]
        assert pruned.used[row].nonzero()[:, 0].tolist() == left
        assert [pruned.parents[row, i] for i in left] == [draft.parents[row, i] for i in left]
        assert [pruned.tokens[row, i] for i in left] == [draft.tokens[row, i] for i in left]


def test_pruning_leaves_no_token_outside_the_vocabulary() -> None:
    draft = Draft.chain(torch.tensor([2]), torch.tensor([[-1, 99]]))
    assert draft.pruned(torch.tensor([[True, False, False]])).tokens.tolist() == [[2, 2, 2]]


@given(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["none", "a", "b", "both"]))
def test_select_takes_whole_rows_of_drafts_of_any_width(wide: int, narrow: int, stated: str) -> None:
    anchor = torch.tensor([0, 1])
    generator = torch.Generator().manual_seed(wide * 4 + narrow)
    a = Draft.chain(anchor, torch.randint(0, V, (2, wide), generator=generator))
    b = Draft.chain(anchor, torch.randint(0, V, (2, narrow), generator=generator))
    if stated in ("a", "both"):
        a = Draft(a.tokens, a.parents, _q(a, 1), linear=True)
    if stated in ("b", "both"):
        b = Draft(b.tokens, b.parents, _q(b, 2), linear=True)
    out = Draft.select(torch.tensor([True, False]), a, b)
    for row, source in enumerate((a, b)):
        n = source.nodes
        assert torch.equal(out.tokens[row, :n], source.tokens[row])
        assert torch.equal(out.parents[row, :n], source.parents[row])
        assert not bool(out.used[row, n:].any())
        if stated != "none":
            assert out.q is not None
            point = torch.nn.functional.one_hot(source.tokens[row], V).float()
            assert torch.equal(out.q[row, 1:n], (point if source.q is None else source.q[row])[1:])
    assert (out.q is None) == (stated == "none")


def test_select_of_a_chain_and_a_tree_is_not_linear() -> None:
    a = Draft.chain(torch.zeros(1).long(), torch.ones(1, 2).long())
    b = Draft(a.tokens, torch.tensor([[-1, 0, 0]]))
    assert not Draft.select(torch.tensor([True]), a, b).linear


def _verdict(batch: list[list[int]], ends: list[int], following: list[int]) -> Verdict:
    paths = [path_of(up, end) for up, end in zip(batch, ends, strict=True)]
    rows = [path + [-1] * (len(batch[0]) - len(path)) for path in paths]
    return Verdict(torch.tensor(rows), torch.tensor([len(p) - 1 for p in paths]), torch.tensor(following))


@given(parents(), st.data())
def test_emitted_is_the_kept_path_then_the_next_token(batch: list[list[int]], data: st.DataObject) -> None:
    tokens = torch.arange(len(batch) * len(batch[0])).view(len(batch), -1)
    ends = [data.draw(st.sampled_from(used_nodes(up))) for up in batch]
    draft, verdict = Draft(tokens, torch.tensor(batch)), _verdict(batch, ends, [1000] * len(batch))
    for row, up in enumerate(batch):
        wanted = [int(tokens[row, i]) for i in path_of(up, ends[row])[1:]] + [1000]
        assert verdict.emitted(draft)[row].tolist() == wanted + [-1] * (len(up) - len(wanted))


@given(parents(), st.integers(1, 9), st.data())
def test_the_next_context_ends_with_what_was_emitted(batch: list[list[int]], window: int, data: st.DataObject) -> None:
    rows = len(batch)
    history = [data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=12)) for _ in batch]
    tail = [([-1] * window + h)[-window:] for h in history]
    ctx = Context(
        torch.arange(rows),
        torch.tensor([len(h) for h in history]),
        torch.tensor(tail),
        8,
        Sampling.uniform(rows),
        room=torch.full((rows,), 20),
    )
    tokens = torch.arange(100, 100 + rows * len(batch[0])).view(rows, -1)
    ends = [data.draw(st.sampled_from(used_nodes(up))) for up in batch]
    after = ctx.after(Draft(tokens, torch.tensor(batch)), _verdict(batch, ends, [1000] * rows))
    assert after.room is not None
    for row, up in enumerate(batch):
        whole = history[row] + [int(tokens[row, i]) for i in path_of(up, ends[row])[1:]] + [1000]
        assert after.tail[row].tolist() == ([-1] * window + whole)[-window:]
        assert int(after.lengths[row]) == len(whole)
        assert int(after.room[row]) == 20 - (len(whole) - len(history[row]))
    assert after.anchor.tolist() == [1000] * rows


def test_rows_of_a_context_may_repeat_and_keep_their_own_sampling() -> None:
    sampling = Sampling.uniform(3, temperature=0.5, seed=7)
    tail = torch.arange(6).view(3, 2)
    ctx = Context(torch.tensor([4, 5, 6]), torch.tensor([9, 8, 7]), tail, 4, sampling, room=torch.tensor([3, 2, 1]))
    some = ctx.rows(torch.tensor([2, 0, 2]))
    assert some.room is not None
    assert some.slots.tolist() == [6, 4, 6]
    assert some.lengths.tolist() == [7, 9, 7]
    assert some.tail.tolist() == [[4, 5], [0, 1], [4, 5]]
    assert some.sampling.seed.tolist() == [9, 7, 9]
    assert some.room.tolist() == [1, 3, 1]


def test_masked_scores_are_minus_infinity_where_not_allowed() -> None:
    scores = Scores(torch.zeros(1, 1, 3)).masked(torch.tensor([[[True, False, True]]]))
    assert scores.logits.tolist() == [[[0.0, -torch.inf, 0.0]]]
