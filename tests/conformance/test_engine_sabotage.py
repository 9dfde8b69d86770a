"""Defects planted in parts and in the engine: a kit that nobody has seen fail is no evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from specdec_drafters.draft_model import DraftModel
from torch import Tensor

from specdec import registry, tree
from specdec.drafter import Drafter
from specdec.engine.row import Row
from specdec.errors import ContractError
from specdec.sampling import Sampling
from specdec.target import Target
from specdec.testing import RandomTree, TinyTarget, assert_conforms, assert_rule_conforms, assert_target_conforms
from specdec.types import Context, Draft, Scores, Verdict
from specdec.verifier import Verifier, verdict_of


class AcceptsAll(Verifier):
    lossless = True

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        first = tree.first_among_siblings(draft.tokens, draft.parents)
        oldest = first & (draft.parents.diff(dim=1, prepend=torch.full_like(draft.parents[:, :1], -2)) != 0)
        return verdict_of(draft, oldest, sampling.pick(scores.logits, lengths[:, None] + draft.depth))


class KeepsArgmax(Verifier):
    lossless = True

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        drawn = sampling.pick(scores.logits, lengths[:, None] + draft.depth)
        kept = draft.tokens == scores.logits.argmax(-1).gather(1, draft.parents.clamp(min=0))
        return verdict_of(draft, kept & tree.first_among_siblings(draft.tokens, draft.parents), drawn)


class DrawsByRow(Verifier):
    """Noise that depends on where a row stands in its batch."""

    lossless = True

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        moved = replace(sampling, seed=sampling.seed + torch.arange(len(lengths)))
        match = registry.build(registry.VERIFIERS, "match")
        return match.accept(draft, scores, moved, lengths)  # type: ignore[no-any-return]


class KeepsTreeOrder(TinyTarget):
    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """The accepted rows stay where the tree had them."""


class ShiftsLogits(TinyTarget):
    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        scores = super().score(slots, lengths, draft)
        return Scores(scores.logits.roll(1, 1) if draft.nodes > 1 else scores.logits)


class OneMaskForAll(TinyTarget):
    """A tree attended as if it were a chain."""

    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        index = torch.arange(draft.nodes)
        return super().score(slots, lengths, replace(draft, parents=(index - 1).expand_as(draft.parents), linear=True))


def itself(target: Target) -> Drafter:
    return DraftModel(TinyTarget())


def trees(target: Target) -> Drafter:
    return RandomTree(narrow=5)


def check(**options: object) -> None:
    make = options.pop("make", itself)
    assert_conforms(make, temperatures=(0.7,), budgets=(5,), max_tokens=12, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [itself, trees])
def test_the_sound_parts_pass(make: Callable[[Target], Drafter]) -> None:
    check(make=make)


@pytest.mark.parametrize(
    ("rule", "make"),
    [(AcceptsAll(), trees), (KeepsArgmax(), itself), (DrawsByRow(), itself)],
    ids=lambda x: str(x)[:20],
)
def test_a_wrong_rule_is_found_out_by_equality(rule: Verifier, make: Callable[[Target], Drafter]) -> None:
    with pytest.raises(AssertionError, match="as plain decoding gives"):
        check(verifier=rule, make=make)


@pytest.mark.parametrize("target", [KeepsTreeOrder, ShiftsLogits, OneMaskForAll])
def test_a_wrong_target_is_found_out_by_equality(target: type[TinyTarget]) -> None:
    with pytest.raises(AssertionError, match="as plain decoding gives"):
        check(target=target, make=trees)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (KeepsTreeOrder, "the cache after the committed tree path"),
        (ShiftsLogits, "differs from its path"),
        (OneMaskForAll, "differs from its path"),
    ],
)
def test_a_wrong_target_is_found_out_alone(target: type[TinyTarget], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_target_conforms(target)


def test_a_rule_that_looks_at_its_neighbours_is_found_out_alone() -> None:
    with pytest.raises(AssertionError, match="depends on its neighbours"):
        assert_rule_conforms(DrawsByRow())


def test_a_rule_that_writes_into_its_input_is_found_out() -> None:
    class Writes(AcceptsAll):
        def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
            scores.logits[:, :, 0] = 0
            return super().accept(draft, scores, sampling, lengths)

    with pytest.raises(AssertionError, match="Writes wrote into its input"):
        assert_rule_conforms(Writes())


def test_a_rule_whose_verdict_is_no_path_is_found_out() -> None:
    class Jumps(AcceptsAll):
        def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
            path = torch.full_like(draft.tokens, -1)
            path[:, 0], path[:, 1] = 0, draft.nodes - 1
            return Verdict(path, torch.ones_like(lengths), draft.tokens[:, 0])

    with pytest.raises(ContractError, match=r"Jumps\.accept returned path"):
        assert_rule_conforms(Jumps())


class Broken(RandomTree):
    """Random trees spoilt by `spoil`."""

    def __init__(self, spoil: Callable[[Context, Draft], Draft]) -> None:
        super().__init__(narrow=5)
        self.spoil = spoil

    def propose(self, ctx: Context) -> Draft:
        return self.spoil(ctx, super().propose(ctx))


def late_parent(ctx: Context, draft: Draft) -> Draft:
    parents = draft.parents.clone()
    parents[:, 1] = 2
    return replace(draft, parents=parents)


def orphan(ctx: Context, draft: Draft) -> Draft:
    parents = draft.parents.clone()
    parents[:, 1:] = torch.tensor([-1, 1, 0, 0])
    return replace(draft, parents=parents)


def other_anchor(ctx: Context, draft: Draft) -> Draft:
    tokens = draft.tokens.clone()
    tokens[:, 0] += 1
    return replace(draft, tokens=tokens)


def with_q(q: Callable[[Tensor], Tensor]) -> Callable[[Context, Draft], Draft]:
    return lambda ctx, draft: replace(draft, q=q(torch.full((*draft.tokens.shape, 37), 1 / 37)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (late_parent, r"parents\[0, 1\] == 2; a parent must come before its node"),
        (orphan, "a node whose parent is unused"),
        (other_anchor, "node 0 is not the anchor"),
        (lambda ctx, draft: draft.padded(6), "returned 6 nodes; the budget is 5"),
        (lambda ctx, draft: replace(draft, tokens=draft.tokens.to(torch.int32)), r"tokens \[\d, 5\] int32"),
        (lambda ctx, draft: replace(draft, parents=draft.parents[:, :4]), r"parents \[\d, 4\] int64"),
        (lambda ctx, draft: replace(draft, linear=True), "called a draft linear that is no chain"),
        (lambda ctx, draft: None, "returned NoneType"),
        (with_q(lambda q: q * 2), r"q\[0, \d\], which sums to 2.0000"),
        (with_q(lambda q: q * torch.nan), "is no distribution"),
        (with_q(lambda q: q.log()), "is no distribution"),
        (with_q(lambda q: q[..., :30]), r"q \[\d, 5, 30\] float32"),
        (with_q(lambda q: q[:, 1:]), r"q \[\d, 4, 37\] float32"),
    ],
)
def test_a_broken_draft_is_reported_by_name(spoil: Callable[[Context, Draft], Draft], message: str) -> None:
    with pytest.raises(ContractError, match=r"^Broken\.propose") as caught:
        check(make=lambda target: Broken(spoil))
    assert caught.match(message)


def test_a_propose_that_writes_state_is_reported_by_name() -> None:
    class Counts(RandomTree):
        calls = 0

        def propose(self, ctx: Context) -> Draft:
            self.calls += 1
            self._seed = self.calls
            return super().propose(ctx)

    with pytest.raises(ContractError, match=r"Counts\.propose gave two drafts for one context"):
        check(make=lambda target: Counts())


def test_a_propose_whose_q_changes_is_reported_by_name() -> None:
    class Moody(RandomTree):
        calls = 1

        def propose(self, ctx: Context) -> Draft:
            self.calls += 1
            draft = super().propose(ctx)
            return replace(draft, q=torch.ones(*draft.tokens.shape, 37).cumsum(-1).pow(self.calls).softmax(-1))

    with pytest.raises(ContractError, match=r"Moody\.propose gave two drafts for one context"):
        check(make=lambda target: Moody())


class NotANumber(TinyTarget):
    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        return Scores(super().score(slots, lengths, draft).logits * torch.nan)


class HalfPrecise(TinyTarget):
    def open(self, slots: Tensor, prompts: list[Tensor]) -> Scores:
        return Scores(super().open(slots, prompts).logits.half())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (NotANumber, r"NotANumber\.score returned logits that are not numbers"),
        (HalfPrecise, r"HalfPrecise\.open returned logits \[1, 1, 37\] float16"),
    ],
)
def test_a_target_that_breaks_its_contract_is_reported_by_name(target: type[TinyTarget], message: str) -> None:
    from specdec import Engine

    with pytest.raises(ContractError, match=message):
        Engine(target(), "none", check=True).generate([[1, 2]], max_tokens=3)


def stop_at_the_end_of_a_round(row: Row, tokens: list[int]) -> list[int]:
    for token in tokens:
        row.tokens.append(token)
        row.shaper.advance([token])
    out = row.stopper.output
    if out.tokens[-1] in row.stopper.ends:
        out.finish_reason = "stop"
    elif row.stopper.remaining <= 0:
        out.finish_reason = "length"
    return tokens


def test_a_stop_ignored_inside_a_block_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """End tokens were looked for in the last token of an accepted run only."""
    monkeypatch.setattr(Row, "push", stop_at_the_end_of_a_round)
    with pytest.raises(AssertionError, match="with a stop token"):
        check()


def test_penalties_that_advance_once_a_round_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty counted each round's last token only, so it was the weaker the longer the accepted runs."""
    from specdec.shaping.penalties import Penalties

    advance = Penalties.advance
    real_push = Row.push

    def push(row: Row, tokens: list[int]) -> list[int]:
        monkeypatch.setattr(Penalties, "advance", lambda self, kept: None)
        kept = real_push(row, tokens)
        monkeypatch.setattr(Penalties, "advance", advance)
        row.shaper.advance(kept[-1:])
        return kept

    monkeypatch.setattr(Row, "push", push)
    with pytest.raises(AssertionError, match="with penalties"):
        check()
