"""The cost policy against a world whose times and acceptance are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from specdec import Engine
from specdec.engine import steptime
from specdec.engine.budget import FixedBudget, RoundResult
from specdec.engine.cost import CostBudget
from specdec.engine.steptime import StepTimes
from specdec.testing import SlowDrafter, TableTarget, TinyTarget, Wrong

FLAT = {1: 10.0, 2: 10.0, 4: 10.0, 8: 10.0, 16: 10.0}
LINEAR = {n: 10.0 * n for n in (1, 2, 4, 8, 16)}
KNEE = {1: 10.0, 2: 10.2, 4: 10.6, 8: 11.4, 16: 40.0, 32: 80.0}


def live(
    policy: CostBudget,
    times: dict[int, float],
    kept: Callable[[int, str], int],
    *,
    ids: Sequence[str] = ("a",),
    rounds: int = 200,
    most: int = 8,
    draft_ms: float = 0.1,
) -> list[int]:
    """Run rounds in a world with these verification times; kept(round, id): tokens a draft would be right about."""
    world = StepTimes(times)
    chosen = []
    for i in range(rounds):
        budget = policy.choose(ids, most)
        for name in ids if budget > 1 else ():
            policy.learn(name, budget - 1, budget - 1, min(budget - 1, kept(i, name)))
        ms = world.verify(len(ids), budget)
        policy.observe(RoundResult(ids, budget, budget, draft_ms * (budget - 1), ms))
        chosen.append(budget)
    return chosen


def drafting(chosen: Sequence[int]) -> float:
    """Share of rounds with a draft."""
    return sum(budget > 1 for budget in chosen) / len(chosen)


def test_the_fixed_policy_takes_all() -> None:
    assert FixedBudget().choose(["a"], 7) == 7


def test_it_drafts_deep_where_nodes_cost_nothing_and_all_are_kept() -> None:
    chosen = live(CostBudget(StepTimes(FLAT)), FLAT, lambda i, name: 99)
    assert set(chosen[20:]) == {8}


@pytest.mark.parametrize("kept", [0, 1])
def test_it_does_not_draft_where_a_token_would_cost_more(kept: int) -> None:
    """Speculation went on where every added token made the step as much slower as it brought."""
    chosen = live(CostBudget(StepTimes(LINEAR)), LINEAR, lambda i, name: kept)
    assert drafting(chosen) < 0.1


def test_it_stops_at_the_knee_of_the_step_time() -> None:
    """Speculation collapsed where the batch crossed the size that the device takes in one step."""
    few = live(CostBudget(StepTimes(KNEE)), KNEE, lambda i, name: 99, ids=["a"])
    many = live(CostBudget(StepTimes(KNEE)), KNEE, lambda i, name: 1, ids=[f"r{i}" for i in range(8)])
    assert set(few[20:]) == {8}
    assert drafting(many) < 0.1


def slower(chosen: Sequence[int], times: dict[int, float], draft_ms: float = 0.1) -> float:
    """Time of rounds whose drafts all fail, over the time of plain decoding."""
    world = StepTimes(times)
    spent = sum(world.verify(1, budget) + draft_ms * (budget - 1) for budget in chosen)
    return spent / (len(chosen) * world.verify(1, 1))


def test_refused_drafts_are_given_up_but_for_a_hundredth_of_the_time() -> None:
    chosen = live(CostBudget(StepTimes(KNEE)), KNEE, lambda i, name: 0, rounds=800)
    assert slower(chosen[:200], KNEE) < 1.05
    assert slower(chosen[200:], KNEE) < 1.015
    assert drafting(chosen[200:]) > 0


def test_a_gain_below_the_margin_starts_no_drafting() -> None:
    """A policy without a margin flips at every round's noise."""
    times = {1: 10.0, 2: 19.9, 4: 39.8, 8: 79.6}
    assert drafting(live(CostBudget(StepTimes(times)), times, lambda i, name: 99, draft_ms=0.0)) < 0.1


def test_a_drafter_whose_acceptance_decays_is_switched_off_and_comes_back() -> None:
    """Acceptance fell as the context grew, and drafting went on at a loss."""

    def kept(i: int, name: str) -> int:
        return 0 if 100 <= i < 700 else 99

    chosen = live(CostBudget(StepTimes(KNEE)), KNEE, kept, rounds=1200)
    assert drafting(chosen[20:100]) == 1
    assert slower(chosen[100:700], KNEE) < 1.05
    assert drafting(chosen[400:700]) < 0.15
    assert drafting(chosen[900:]) == 1


def test_a_drafter_that_is_silent_and_slow_is_not_asked_again_and_again() -> None:
    """A drafter without any draft was asked in every round, at a loss."""
    policy = CostBudget(StepTimes(FLAT))
    asked = 0
    for _ in range(400):
        budget = policy.choose(["a"], 8)
        asked += budget > 1
        if budget > 1:
            policy.learn("a", budget - 1, 0, 0)
        policy.observe(RoundResult(["a"], budget, 1, 1.0 if budget > 1 else 0.0, 10.0))
    assert asked * 1.0 < 0.02 * 400 * 10.0


def test_each_request_is_judged_by_its_own_acceptance() -> None:
    policy = CostBudget(StepTimes(KNEE))
    good, bad = [], []
    for _ in range(300):
        good += live(policy, KNEE, lambda i, name: 99, ids=["good"], rounds=1)
        bad += live(policy, KNEE, lambda i, name: 0, ids=["bad"], rounds=1)
    assert drafting(good) == 1
    assert slower(bad[100:], KNEE) < 1.03


def test_what_one_request_taught_is_forgotten_with_it() -> None:
    policy = CostBudget(StepTimes(KNEE))
    for _ in range(80):
        policy.learn("bad", 7, 7, 0)
        policy.observe(RoundResult(["bad"], 8, 8, 0.1, 11.4))
    live(policy, KNEE, lambda i, name: 99, ids=["good"], rounds=200)
    before = policy.choose(["bad"], 8)
    policy.forget("bad")
    policy.forget("never seen")
    assert (before, policy.choose(["bad"], 8) > 1) == (1, True)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_the_budget_stays_within_what_is_allowed(most: int) -> None:
    chosen = live(CostBudget(StepTimes(FLAT)), FLAT, lambda i, name: i % 5, most=most)
    assert min(chosen) >= 1
    assert max(chosen) <= most


def test_drafting_that_takes_longer_than_it_saves_is_not_done() -> None:
    chosen = live(CostBudget(StepTimes(FLAT)), FLAT, lambda i, name: 99, draft_ms=60.0)
    assert drafting(chosen[20:]) < 0.1


def test_rounds_that_do_not_draft_cost_no_work_of_the_drafter() -> None:
    """A controller that had chosen no drafts still ran the drafter."""
    prompt = (1, 2)
    [plain] = Engine(TinyTarget(), "none").generate([prompt], max_tokens=150)
    drafter = SlowDrafter(Wrong({prompt: plain.tokens}), 0.005)
    engine = Engine(TinyTarget(), drafter, policy="cost", budget=6)
    [out] = engine.generate([prompt], max_tokens=150)
    assert out.tokens == plain.tokens
    assert drafter.proposals < 40


def test_step_times_lie_between_what_was_measured() -> None:
    times = StepTimes({8: 16.0, 1: 10.0, 2: 11.0, 4: 13.0})
    assert [times.verify(1, n) for n in (1, 2, 3, 4, 6, 8)] == [10.0, 11.0, 12.0, 13.0, 14.5, 16.0]
    assert times.verify(2, 3) == 14.5
    assert times.verify(4, 8) == 64.0


def test_rounds_that_were_seen_count_more_than_the_table() -> None:
    times = StepTimes({1: 10.0, 4: 20.0})
    times.saw_verify(1, 4, 30.0)
    assert times.verify(1, 4) == 30.0
    assert times.verify(1, 1) == 15.0
    times.saw_verify(1, 4, 1000.0)
    assert (times.verify(1, 4), times.verify(1, 1)) == (30.0, 15.0)


def test_a_slow_minute_speaks_against_no_shape() -> None:
    """Shapes that were seen only while the machine was busy counted as slow for good."""
    times = StepTimes({1: 10.0, 4: 11.0})
    for busy in (1.0, 3.0, 1.0):
        for _ in range(20):
            times.saw_verify(1, 1, 10.0 * busy)
            if busy > 1:
                times.saw_verify(1, 4, 11.0 * busy)
    assert times.verify(1, 4) / times.verify(1, 1) < 1.25


def test_a_shape_that_is_slower_than_measured_is_found_out() -> None:
    times = StepTimes({1: 10.0, 4: 11.0})
    for _ in range(40):
        times.saw_verify(1, 1, 10.0)
        times.saw_verify(1, 4, 22.0)
    assert times.verify(1, 4) / times.verify(1, 1) == pytest.approx(2.2, rel=0.2)


def test_drafting_takes_time_in_proportion_to_its_tokens() -> None:
    times = StepTimes({1: 10.0})
    assert times.draft(8) == 0.0
    times.saw_draft(5, 8.0)
    assert (times.draft(5), times.draft(9), times.draft(2)) == (8.0, 16.0, 8.0)


@pytest.mark.parametrize(
    "make", [TinyTarget, lambda: TableTarget(torch.eye(5)), lambda: TinyTarget(max_len=4, max_budget=5)]
)
def test_measuring_leaves_the_target_as_it_was(make: Callable[[], TinyTarget]) -> None:
    target = make()
    budget = min(8, target.spec.max_budget)
    times = StepTimes.measured(target, budget)
    assert all(times.verify(1, n) > 0 for n in range(1, 2 * budget))
    got = Engine(target, "ngram", budget=budget).generate([[1, 2], [3]], max_tokens=9)
    want = Engine(make(), "none").generate([[1, 2], [3]], max_tokens=9)
    assert [out.tokens for out in got] == [out.tokens for out in want]


def test_measuring_takes_the_middle_of_its_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    spikes = iter([0.0, 1.0] + [0.0, 0.001] * 1000)
    base = {"now": 0.0}

    def fake() -> float:
        next(clock)
        base["now"] += next(spikes)
        return base["now"]

    monkeypatch.setattr(steptime, "perf_counter", fake)
    times = StepTimes.measured(TinyTarget(), 2)
    assert times.verify(1, 1) == pytest.approx(1.0)
