"""State: rollback, rows that come and go, aborts and exceptions in every phase, and slots that all come back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from case_helpers import SHAPES, assert_same, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from specdec_drafters.draft_model import DraftModel
from specdec_drafters.ngram import Ngram

from specdec import Engine, Request, SamplingParams
from specdec.drafter import Drafter, DrafterSpec
from specdec.testing import RandomTree, ScriptedDrafter, TinyTarget
from specdec.types import Context, Draft, Scores, Verdict

V = 37


def verdict_along(draft: Draft, node: int) -> Verdict:
    """Keep the path to `node`, and go on with token 1."""
    path = [i for i in range(draft.nodes) if bool(draft.ancestors[0, node, i])]
    padded = torch.full((1, draft.nodes), -1)
    padded[0, : len(path)] = torch.tensor(path)
    return Verdict(padded, torch.tensor([len(path) - 1]), torch.tensor([1]))


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[list[int], list[int], int]]:
    """Some rounds of tokens, parents and the node whose path is kept."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 7))
        tokens = draw(st.lists(st.integers(0, V - 1), min_size=n, max_size=n))
        parents = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, n)]
        made.append((tokens, parents, draw(st.integers(0, n - 1))))
    return made


@settings(derandomize=True, deadline=None, database=None, max_examples=60)
@given(rounds(), st.lists(st.integers(0, V - 1), min_size=1, max_size=6))
def test_a_cache_rolled_back_to_any_node_is_a_fresh_cache(
    plan: list[tuple[list[int], list[int], int]], prompt: list[int]
) -> None:
    """Cropping a cache by nothing kept all of it, cropping it by more than it held kept one row."""
    target, fresh = TinyTarget(), TinyTarget()
    slot, text, anchor = torch.tensor([3]), list(prompt), 2
    target.open(slot, [torch.tensor(prompt)])
    for tokens, parents, node in plan:
        draft = Draft(torch.tensor([[anchor, *tokens[1:]]]), torch.tensor([parents]))
        lengths = torch.tensor([len(text) + 1])
        target.score(slot, lengths, draft)
        verdict = verdict_along(draft, node)
        target.commit(slot, lengths, draft, verdict)
        text += draft.tokens[0][draft.ancestors[0, node]].tolist()
        anchor = 1
    end = Draft.empty(torch.tensor([anchor]))
    got = target.score(slot, torch.tensor([len(text) + 1]), end).logits[0, 0]
    want = fresh.open(torch.tensor([0]), [torch.tensor([*text, anchor])]).logits[0, 0]
    assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("kept", range(8))
def test_a_block_may_be_refused_from_any_position_on(kept: int) -> None:
    """State that was not rolled back after a part of a block was refused: healthy acceptance, corrupt text."""
    prompts = [[1, 5, 9], [2]]
    want = plain(TinyTarget(), prompts, SamplingParams(max_tokens=40))

    class Until(SHAPES["chain"]):  # type: ignore[misc, valid-type]  # a class from a table
        def propose(self, ctx: Context) -> Draft:
            draft = super().propose(ctx)
            tokens = draft.tokens.clone()
            tokens[:, kept + 1 :] = (tokens[:, kept + 1 :] + 1) % V
            return Draft(tokens, draft.parents, linear=True)

    answers = {tuple(p): one.tokens for p, one in zip(prompts, want, strict=True)}
    got = Engine(TinyTarget(), Until(answers), budget=8).generate(prompts, max_tokens=40)
    assert_same(got, want)
    assert all(abs(one.stats.tau - (min(kept, 7) + 1)) < 0.8 for one in got)


class Uneven(Drafter):
    """Drafts of 0, 1, 4 and 7 tokens side by side, in an order that changes every round."""

    spec = DrafterSpec()

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self.inner = SHAPES["chain"](answers)
        self.attach, self.open, self.close = self.inner.attach, self.inner.open, self.inner.close  # type: ignore[method-assign]

    def propose(self, ctx: Context) -> Draft:
        chain = self.inner.propose(ctx)
        counts = [random.Random(int(n)).choice([0, 1, 4, 7]) for n in ctx.lengths]
        index = torch.arange(chain.nodes)
        parents = torch.where(index <= torch.tensor(counts)[:, None], chain.parents, -1)
        return Draft(chain.tokens, parents, linear=True)


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rows_of_uneven_drafts_keep_to_themselves_while_requests_come_and_go(slots: int, temperature: float) -> None:
    """Rows were matched by the order of a dictionary: tokens leaked between requests with drafts of other lengths."""
    dice = random.Random(5)
    prompts = [[dice.randrange(V) for _ in range(dice.randrange(1, 6))] for _ in range(12)]
    params = [
        SamplingParams(max_tokens=dice.randrange(1, 30), temperature=temperature, seed=i) for i in range(len(prompts))
    ]
    want = [plain(TinyTarget(), [p], s)[0] for p, s in zip(prompts, params, strict=True)]
    answers = {tuple(p): one.tokens for p, one in zip(prompts, want, strict=True)}
    engine = Engine(TinyTarget(slots=slots), Uneven(answers), budget=8, check=True)
    assert_same(engine.generate(prompts, params), want)


PHASES = [
    "target.open",
    "open",
    "propose",
    "score",
    "while_verifying",
    "target.commit",
    "commit",
    "target.close",
    "close",
]
Hook = Callable[[str], None]


class HookedTarget(TinyTarget):
    """Calls a hook before each of its methods."""

    hook: Hook = staticmethod(lambda phase: None)

    def open(self, slots: torch.Tensor, prompts: Sequence[torch.Tensor]) -> Scores:
        self.hook("target.open")
        return super().open(slots, prompts)

    def score(self, slots: torch.Tensor, lengths: torch.Tensor, draft: Draft) -> Scores:
        self.hook("score")
        return super().score(slots, lengths, draft)

    def commit(self, slots: torch.Tensor, lengths: torch.Tensor, draft: Draft, verdict: Verdict) -> None:
        self.hook("target.commit")
        super().commit(slots, lengths, draft, verdict)

    def close(self, slots: torch.Tensor) -> None:
        self.hook("target.close")
        super().close(slots)


class Hooked(RandomTree):
    """Random trees that call a hook before each method."""

    hook: Hook = staticmethod(lambda phase: None)

    def open(self, slots: torch.Tensor, requests: Sequence[Request], scores: Scores) -> None:
        self.hook("open")

    def propose(self, ctx: Context) -> Draft:
        self.hook("propose")
        return super().propose(ctx)

    def while_verifying(self, ctx: Context, draft: Draft) -> None:
        self.hook("while_verifying")

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        self.hook("commit")

    def close(self, slots: torch.Tensor) -> None:
        self.hook("close")


def hooked(slots: int = 16) -> tuple[Engine, HookedTarget, Hooked]:
    target, drafter = HookedTarget(slots=slots), Hooked(narrow=5)
    return Engine(target, drafter, budget=4), target, drafter


def requests(count: int) -> list[Request]:
    dice = random.Random(11)
    return [
        Request(
            [dice.randrange(V) for _ in range(dice.randrange(1, 5))],
            SamplingParams(max_tokens=dice.randrange(1, 8), temperature=0.8, seed=i),
            id=f"r{i}",
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[int]]:
    """The answers to a thousand requests that nobody aborts."""
    engine, _, _ = hooked()
    return {out.id: out.tokens for out in engine.session(requests(1000)).run()}


@pytest.mark.parametrize("phases", [PHASES[:3], PHASES[3:]], ids=["drafting", "verifying"])
def test_aborts_in_every_phase_free_all_slots_and_leave_neighbours_alone(
    phases: list[str], undisturbed: dict[str, list[int]]
) -> None:
    """Slots leaked when requests were cancelled, and a cancelled one corrupted its neighbours at temperature 0."""
    engine, target, drafter = hooked()
    dice = random.Random(3)
    aborted: set[str] = set()

    def hook(phase: str) -> None:
        if phase in phases and dice.random() < 0.3:
            started = [row.id for row in session._batch.rows] or ["r0"]
            ask = dice.choice([*started, f"r{dice.randrange(1000)}"])
            aborted.add(ask)
            engine.abort(ask)

    target.hook = drafter.hook = hook  # type: ignore[method-assign]
    session = engine.session(requests(1000))
    got = session.run()
    assert engine.free_slots == target.spec.slots
    assert [out.id for out in got] == [f"r{i}" for i in range(1000)]
    ends = {out.id for out in got if out.finish_reason == "abort"}
    assert 50 < len(ends) < 950
    assert ends <= aborted
    for out in got:
        whole = undisturbed[out.id]
        assert out.tokens == (whole[: len(out.tokens)] if out.id in ends else whole)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("call", [1, 4])
def test_an_exception_in_any_phase_frees_all_slots(phase: str, call: int) -> None:
    """An error in a draft left its slots taken for ever."""
    engine, target, drafter = hooked(slots=3)
    calls = 0

    def hook(now: str) -> None:
        nonlocal calls
        calls += now == phase
        if now == phase and calls == call:
            raise RuntimeError(f"{phase} failed")

    target.hook = drafter.hook = hook  # type: ignore[method-assign]
    asked = requests(9)
    with pytest.raises(RuntimeError, match=f"{phase} failed"):
        engine.session(asked).run()
    assert engine.free_slots == 3
    again = engine.session(asked).run()
    want, _, _ = hooked(slots=3)
    assert_same(again, want.session(asked).run())


@pytest.mark.parametrize("phase", ["target.open", "open"])
def test_requests_whose_prefill_failed_are_told_as_aborted(phase: str) -> None:
    engine, target, drafter = hooked(slots=3)
    failed = False

    def hook(now: str) -> None:
        nonlocal failed
        if now == phase and not failed:
            failed = True
            raise RuntimeError("no memory")

    target.hook = drafter.hook = hook  # type: ignore[method-assign]
    session = engine.session(requests(5))
    with pytest.raises(RuntimeError, match="no memory"):
        session.step()
    out = session.run()
    assert [one.finish_reason for one in out] == ["abort"] * 3 + ["length"] * 2


@pytest.mark.parametrize("drafter", ["ngram", "itself", "trees"])
def test_a_slot_used_again_remembers_nothing(drafter: str) -> None:
    """A request that followed a cancelled one with the same prefix read its cache."""
    made = {"ngram": Ngram(min_match=1), "itself": DraftModel(TinyTarget(slots=1)), "trees": RandomTree(narrow=5)}
    engine = Engine(TinyTarget(slots=1), made[drafter], budget=5, check=True)
    long, short = [1, 2, 3] * 20, [1, 2, 3, 1]
    for prompt in (long, short, long, short):
        session = engine.session([Request(prompt, SamplingParams(max_tokens=30))])
        session.step()
        session.close()
        [got] = engine.generate([prompt], max_tokens=12)
        assert_same([got], plain(TinyTarget(slots=1), [prompt], SamplingParams(max_tokens=12)))


def test_a_stop_inside_a_block_leaves_the_neighbours_in_step() -> None:
    prompts = [[1, 5, 9], [2], [7, 7]]
    free = plain(TinyTarget(), prompts, SamplingParams(max_tokens=30))
    answers = {tuple(p): one.tokens for p, one in zip(prompts, free, strict=True)}
    params = [SamplingParams(max_tokens=30, stop_token_ids=[one.tokens[7 + 5 * i]]) for i, one in enumerate(free)]
    got = Engine(TinyTarget(), SHAPES["tree"](answers), budget=9).generate(prompts, params)
    assert_same(got, [plain(TinyTarget(), [p], s)[0] for p, s in zip(prompts, params, strict=True)])


def test_a_scripted_round_of_a_request_is_its_own() -> None:
    """Rounds are counted by slot and start anew with each request."""
    drafter = ScriptedDrafter([[1], [2, 3]])
    engine = Engine(TinyTarget(slots=2), drafter, budget=4)
    got = engine.generate([[1], [2], [3], [4]], max_tokens=20)
    assert {out.stats.drafted for out in got} == {3}
    assert drafter._round == {}
