"""The draft model: its cache beside the target's, what it states, and how much of it is kept."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2
from specdec_drafters import draft_model
from specdec_drafters.draft_model import DraftModel

from specdec import CompositionError, Engine, Request, SamplingParams
from specdec.sampling import Sampling
from specdec.testing import TinyTarget
from specdec.types import Completion, Context, Draft, Scores, Verdict

PROMPTS = [[1, 5, 9, 2], [3, 3, 8], [2], [9, 8, 9, 8, 9, 8, 9]]


@pytest.fixture(params=[True, False], ids=["host", "device"], autouse=True)
def on_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test runs twice: with values read from memory, and without any read, as on a device."""
    if not request.param:
        monkeypatch.setattr(draft_model, "_on_host", lambda x: False)
    return bool(request.param)


def rate(completions: list[Completion]) -> float:
    """Share of drafted tokens that were kept."""
    return sum(out.stats.accepted for out in completions) / sum(out.stats.drafted for out in completions)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("budget", [2, 6])
@pytest.mark.parametrize("slots", [2, 8])
def test_all_is_kept_when_the_draft_model_is_the_target(slots: int, budget: int, temperature: float) -> None:
    engine = Engine(TinyTarget(slots=slots), DraftModel(TinyTarget(slots=slots)), budget=budget, check=True)
    params = [SamplingParams(max_tokens=25 + 7 * i, temperature=temperature, seed=i) for i in range(len(PROMPTS))]
    assert rate(engine.generate(PROMPTS, params)) == 1.0


@pytest.mark.parametrize("rule", ["rejection", "tree_rejection"])
def test_all_is_kept_by_rules_that_read_q_when_the_models_are_one(rule: str) -> None:
    engine = Engine(TinyTarget(), DraftModel(TinyTarget()), rule, budget=5, check=True)
    assert rate(engine.generate(PROMPTS, max_tokens=40, temperature=0.9, seed=3)) == 1.0


@pytest.mark.parametrize("gap", [1, 2, 3, 9, 70])
def test_it_catches_up_after_rounds_without_drafts(gap: int) -> None:
    engine = Engine(TinyTarget(max_budget=16), DraftModel(TinyTarget(max_budget=16)), budget=5)
    session = engine.session([Request(prompt, SamplingParams(max_tokens=200)) for prompt in PROMPTS])
    budgets = [4, 1, 3] + [1] * gap + [5, 5, 1, 2]
    for budget in budgets:
        draft = session.propose(budget)
        verdict = session.accept(draft, session.score(draft))
        assert verdict.accepted.tolist() == [budget - 1] * len(PROMPTS)
        session.commit(draft, verdict)
    session.close()


def test_sessions_side_by_side_do_not_confuse_how_far_behind_each_is() -> None:
    """One session's rounds told the model that it had caught up, when another session's rows had not."""
    engine = Engine(TinyTarget(), DraftModel(TinyTarget()), budget=5)
    one = engine.session([Request(PROMPTS[0], SamplingParams(max_tokens=120))])
    two = engine.session([Request(PROMPTS[1], SamplingParams(max_tokens=120))])

    def step(session: object, budget: int) -> list[int]:
        draft = session.propose(budget)  # type: ignore[attr-defined]
        verdict = session.accept(draft, session.score(draft))  # type: ignore[attr-defined]
        session.commit(draft, verdict)  # type: ignore[attr-defined]
        return verdict.accepted.tolist()  # type: ignore[no-any-return]

    for _ in range(6):
        step(one, 1)
    step(two, 4)
    assert step(one, 4) == [3]
    assert step(one, 4) == [3]
    assert step(two, 4) == [3]


def test_a_request_that_joins_late_is_drafted_for_at_once() -> None:
    engine = Engine(TinyTarget(), DraftModel(TinyTarget()), budget=5)
    session = engine.session([Request(PROMPTS[0], SamplingParams(max_tokens=60))])
    for _ in range(3):
        session.step()
    session.add(Request(PROMPTS[1], SamplingParams(max_tokens=60)))
    assert rate(session.run()) == 1.0


class Imagines(DraftModel):
    """Drafts for futures that never come, before and after each real draft."""

    def propose(self, ctx: Context) -> Draft:
        self.imagine(ctx, 1)
        draft = super().propose(ctx)
        self.imagine(ctx, 3)
        return draft

    def while_verifying(self, ctx: Context, draft: Draft) -> None:
        self.imagine(ctx, 2)

    def imagine(self, ctx: Context, more: int) -> None:
        rows = torch.arange(len(ctx.lengths)).repeat_interleave(2)
        new = torch.stack([torch.arange(more) + 5, torch.arange(more) * 2 + 11]).repeat(len(ctx.lengths), 1)
        tail = torch.cat([ctx.tail[rows], new], 1)[:, more:]
        base = ctx.rows(rows)
        super().propose(
            Context(base.slots, base.lengths + more, tail, ctx.budget, base.sampling, ctx.wants_q, base.room)
        )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_cached_for_futures_that_never_came_are_not_trusted(temperature: float) -> None:
    engine = Engine(TinyTarget(), Imagines(TinyTarget()), budget=5)
    got = engine.generate(PROMPTS, max_tokens=40, temperature=temperature, seed=3)
    assert rate(got) == 1.0


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_cached_for_refused_drafts_are_not_trusted(seed: int) -> None:
    """A draft model that is nearly the target, so that drafts are refused at all depths."""

    class Nearly(TinyTarget):
        def score(self, slots: torch.Tensor, lengths: torch.Tensor, draft: Draft) -> Scores:
            scores = super().score(slots, lengths, draft)
            off = (lengths[:, None] * 7 + draft.depth * 3 + seed) % 4 == 0
            return Scores(torch.where(off[..., None], -scores.logits, scores.logits))

    engine = Engine(TinyTarget(), DraftModel(Nearly()), budget=6)
    got = engine.generate(PROMPTS, max_tokens=80)
    fresh = [truth(seed, prompt, out.tokens) for prompt, out in zip(PROMPTS, got, strict=True)]
    assert [out.stats.accepted for out in got] == [kept for kept, _ in fresh]
    assert [out.stats.rounds for out in got] == [rounds for _, rounds in fresh]


def truth(seed: int, prompt: list[int], tokens: list[int]) -> tuple[int, int]:
    """Kept tokens and rounds of that drafter if its cache is right: right drafts except where it turns its logits."""
    length, left, kept, rounds = len(prompt) + 1, len(tokens) - 1, 0, 0
    while left > 0:
        right = 0
        while right < min(5, left - 1) and ((length + right) * 7 + seed) % 4 != 0:
            right += 1
        kept, rounds = kept + right, rounds + 1
        length, left = length + right + 1, left - right - 1
    return kept, rounds


def test_stated_q_is_what_was_drawn() -> None:
    """Chi-square of drafted tokens against their q, p = 1e-4, fixed seeds."""
    rows = 1200
    target = TinyTarget(6, slots=rows, max_len=12, max_budget=4)
    drafter = DraftModel(TinyTarget(6, slots=rows, max_len=12, max_budget=4, seed=1, sharpness=2.0))
    drafter.attach(target, None)
    slots = torch.arange(rows)
    prompt = torch.tensor([1, 2])
    drafter.open(slots, [Request(prompt)] * rows, Scores(torch.zeros(rows, 1, 6)))
    tail = torch.tensor([-1] * 29 + [1, 2, 3]).expand(rows, 32)
    sampling = Sampling.of([SamplingParams(temperature=0.8, top_k=4)] * rows, list(range(rows)))
    ctx = Context(slots, torch.full((rows,), 3), tail, 3, sampling, wants_q=True)
    draft = drafter.propose(ctx)
    assert draft.q is not None
    for before in (None, 0, 1, 2):
        node = 1 if before is None else 2
        mine = torch.ones(rows, dtype=torch.bool) if before is None else draft.tokens[:, 1] == before
        q = draft.q[mine, node]
        if not len(q):
            continue
        assert torch.allclose(q, q[:1].expand_as(q), atol=1e-5)
        expected = q[0].double() * len(q)
        seen = torch.bincount(draft.tokens[mine, node], minlength=6).double()
        live = expected > 0
        assert int(seen[~live].sum()) == 0
        value = float(((seen - expected)[live] ** 2 / expected[live]).sum())
        assert value < chi2.isf(1e-4, int(live.sum()) - 1)


def test_no_q_is_stated_where_no_rule_reads_it() -> None:
    drafts: list[Draft] = []

    class Notes(DraftModel):
        def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
            drafts.append(draft)
            super().commit(ctx, draft, verdict, scores)

    Engine(TinyTarget(), Notes(TinyTarget()), "match", budget=4).generate(PROMPTS, max_tokens=9)
    assert all(draft.q is None for draft in drafts)


def test_the_model_is_named_only_once_it_is_attached() -> None:
    with pytest.raises(CompositionError, match="draft_model is not attached to a target yet"):
        _ = DraftModel("some folder").model


def test_the_models_slots_are_freed_with_the_requests() -> None:
    model = TinyTarget()
    Engine(TinyTarget(), DraftModel(model), budget=4).generate(PROMPTS, max_tokens=9)
    assert bool((model.cache.k[:, : len(PROMPTS)] == 1e3).all())
