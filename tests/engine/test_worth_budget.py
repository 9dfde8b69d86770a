"""Drafts judged by the text that came, verified or not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec import Engine
from specdec.drafter import Drafter
from specdec.engine import policies
from specdec.engine.budget import RoundResult
from specdec.engine.cost import CostBudget
from specdec.engine.harvest import Harvest
from specdec.engine.judge import ByVerdict
from specdec.engine.steptime import StepTimes
from specdec.engine.watch import ByText
from specdec.engine.worth import WorthBudget
from specdec.params import SamplingParams
from specdec.registry import VERIFIERS, build
from specdec.sampling import Sampling
from specdec.testing import Echo, TinyTarget, Wrong
from specdec.types import Context, Draft

FLAT = dict.fromkeys((1, 2, 4, 8, 16), 10.0)
LINEAR = {n: 10.0 * n for n in (1, 2, 4, 8, 16)}
STEEP = {1: 10.0, 2: 14.0, 4: 18.0, 8: 26.0, 16: 42.0}


class Said(Drafter):
    """Proposes the chains it is told to, one for each row."""

    def __init__(self, *chains: Sequence[int]) -> None:
        self.chains = chains

    def propose(self, ctx: Context) -> Draft:
        longest = max(map(len, self.chains))
        tokens = torch.tensor([[*chain, *[0] * (longest - len(chain))] for chain in self.chains])
        return Draft.chain(ctx.anchor, tokens, counts=torch.tensor([len(chain) for chain in self.chains]))


class Heard(WorthBudget):
    """Notes what it is told, and finds `count` tokens worth verifying."""

    def __init__(self, count: int = 0) -> None:
        super().__init__(StepTimes(FLAT))
        self.count = count
        self.heard: list[tuple[str, int, int, int]] = []

    def worth(self, ids: Sequence[str], lengths: Sequence[int]) -> int:
        return self.count

    def learn(self, request_id: str, allowed: int, drafted: int, kept: int) -> None:
        self.heard.append((request_id, allowed, drafted, kept))


def context(rows: int, budget: int) -> Context:
    zeros = torch.zeros(rows, dtype=torch.int64)
    sampling = Sampling.of([SamplingParams()] * rows, [0] * rows)
    return Context(slots=zeros, lengths=zeros + 1, tail=zeros[:, None], sampling=sampling, budget=budget)


def harvest(tokens: list[list[int]], budget: int) -> Harvest:
    nothing = [0] * len(tokens)
    return Harvest(tokens, nothing, nothing, budget, 1, 0.0, 0.0)


def told(policy: Heard, drafts: Sequence[Sequence[int]], text: Sequence[int]) -> list[tuple[int, int]]:
    """Decode `text` one token a round, with one of the drafts in each; what was learnt: drafted, right."""
    drafter = Said([])
    judge = ByText(drafter, policy)
    for draft, token in zip(drafts, text, strict=True):
        judge.begin(["a"])
        drafter.chains = (draft,)
        budget = 9 if draft else 1
        if draft:
            judge.drafter.propose(context(1, budget))
        judge.settle(["a"], harvest([[token]], budget))
    return [(drafted, kept) for _, _, drafted, kept in policy.heard]


def test_a_draft_that_was_not_verified_is_held_against_the_text() -> None:
    policy = Heard()
    assert told(policy, [[1, 2, 3], [], [], []], [1, 2, 9, 4]) == [(3, 2)]
    assert told(Heard(), [[1, 2], [2, 3], [], []], [1, 2, 3, 4]) == [(2, 2), (2, 2)]
    assert told(Heard(), [[7]], [1]) == [(1, 0)]


def test_a_draft_is_judged_only_when_the_text_decided() -> None:
    assert told(Heard(), [[1, 2, 3], []], [1, 2]) == []


@given(st.data())
def test_every_decided_draft_is_told_once_with_its_right_tokens(data: st.DataObject) -> None:
    token = st.integers(0, 1)
    text = data.draw(st.lists(token, min_size=1, max_size=12))
    drafts = [data.draw(st.lists(token, max_size=4)) for _ in text]
    want = []
    for at, draft in enumerate(drafts):
        came = text[at : at + len(draft)]
        right = 0
        while right < len(came) and came[right] == draft[right]:
            right += 1
        if draft and (right < len(came) or len(came) == len(draft)):
            want.append((len(draft), right))
    assert sorted(told(Heard(), drafts, text)) == sorted(want)


def test_rows_are_judged_by_their_own_texts_and_forgotten_with_them() -> None:
    policy = Heard()
    judge = ByText(Said([1, 2], [5]), policy)
    judge.begin(["a", "b"])
    judge.drafter.propose(context(2, 4))
    judge.settle(["a", "b"], harvest([[1], [6]], 4))
    judge.forget("a")
    judge.begin(["a", "b"])
    judge.settle(["a", "b"], harvest([[2], [5]], 1))
    assert policy.heard == [("b", 3, 1, 0)]


@pytest.mark.parametrize(("count", "nodes"), [(0, 1), (1, 2), (3, 4), (9, 4)])
def test_a_draft_is_cut_to_what_is_worth_verifying(count: int, nodes: int) -> None:
    judge = ByText(Said([1, 2, 3]), Heard(count))
    judge.begin(["a"])
    draft = judge.drafter.propose(context(1, 8))
    assert draft.tokens.tolist() == [[0, 1, 2, 3][:nodes]]
    assert draft.linear
    assert draft.used.all()


def test_nothing_is_worth_more_than_it_costs() -> None:
    policy = WorthBudget(StepTimes(LINEAR))
    for _ in range(50):
        policy.learn("a", 7, 7, 7)
    assert policy.worth(["a"], [7]) == 0


def test_what_is_right_and_cheap_is_verified_whole() -> None:
    policy = WorthBudget(StepTimes(STEEP))
    for _ in range(50):
        policy.learn("a", 7, 7, 7)
        policy.learn("a", 7, 2, 0)
    assert policy.worth(["a"], [7]) == 7
    assert policy.worth(["a"], [2]) == 0
    assert policy.worth(["b"], [2]) == 0


def test_a_draft_that_is_right_at_first_is_verified_so_far() -> None:
    policy = WorthBudget(StepTimes(STEEP))
    for _ in range(80):
        policy.learn("a", 7, 7, 2)
    assert policy.worth(["a"], [7]) == 2


def spent(text_right: int, times: dict[int, float], *, draft_ms: float, rounds: int = 200) -> float:
    """Time of decoding with a drafter right in `text_right` tokens of 7, over the time without."""
    world, policy = StepTimes(times), WorthBudget(StepTimes(times))
    judge = ByText(Said([1] * 7), policy)
    total, emitted = 0.0, 0
    for _ in range(rounds):
        budget = policy.choose(["a"], 8)
        judge.begin(["a"])
        nodes = judge.drafter.propose(context(1, budget)).nodes if budget > 1 else 1
        tokens = [1] * min(nodes - 1, text_right) + [1 if nodes - 1 < text_right else 2]
        judge.settle(["a"], harvest([tokens], budget))
        drafting = draft_ms if budget > 1 else 0.0
        policy.observe(RoundResult(["a"], budget, nodes, drafting, world.verify(1, nodes)))
        total += drafting + world.verify(1, nodes)
        emitted += len(tokens)
    return total / (emitted * world.verify(1, 1))


@pytest.mark.parametrize("times", [FLAT, STEEP, LINEAR], ids=["flat", "steep", "linear"])
@pytest.mark.parametrize("right", [0, 1])
def test_a_drafter_of_no_use_costs_little_more_than_its_own_time(times: dict[int, float], right: int) -> None:
    assert spent(right, times, draft_ms=0.1) < 1.03
    assert spent(right, times, draft_ms=5.0) < 1.12


def test_a_drafter_of_use_is_used() -> None:
    assert spent(7, FLAT, draft_ms=0.1) < 0.2
    assert spent(7, STEEP, draft_ms=0.1) < 0.5


def test_an_engine_that_watches_emits_the_same_tokens() -> None:
    prompt = (1, 2, 3)
    [plain] = Engine(TinyTarget(), "none").generate([prompt], max_tokens=120)
    for drafter in (
        Echo({prompt: plain.tokens}),
        Echo({prompt: plain.tokens}, rate=0.5),
        Wrong({prompt: plain.tokens}),
    ):
        [out] = Engine(TinyTarget(), drafter, policy="cost", budget=6).generate([prompt], max_tokens=120)
        assert out.tokens == plain.tokens


@pytest.mark.parametrize(
    ("verifier", "kind"), [("match", ByText), ("greedy", ByText), ("rejection", ByVerdict), ("typical", ByVerdict)]
)
def test_only_rules_that_keep_the_token_that_comes_are_watched(verifier: str, kind: type) -> None:
    policy, judge = policies.policy_for("cost", TinyTarget(), Said([1]), build(VERIFIERS, verifier, {}), 4)
    assert isinstance(judge(), kind)
    assert type(policy) is (WorthBudget if kind is ByText else CostBudget)
