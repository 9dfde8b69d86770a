"""The budget policy that weighs a measured step time against the acceptance seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.engine.budget import BudgetPolicy, RoundResult
from specdec.engine.steptime import StepTimes
from specdec.target import Target

_SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
_DECAY = 0.97
_PRIOR = 8.0
_GUESS = 0.7
_GAIN = 0.02
_TRIAL = 4
_SPEND = 0.01


@dataclass(slots=True)
class Acceptance:
    """How deep drafts went and were kept, recent rounds weighing more.

    At depth d + 1, over the rounds that got a draft and whose budget reached that deep: open[d] counts them, offered[d]
    those whose draft was that long, kept[d] those that kept it. asked, drew: rounds that asked for a draft, and that
    got one.
    """

    open: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    asked: float = 0.0
    drew: float = 0.0

    def add(self, allowed: int, drafted: int, accepted: int) -> None:
        """One round: draft tokens the budget allowed, that came, and that were kept."""
        self.asked = self.asked * _DECAY + 1
        self.drew = self.drew * _DECAY + (drafted > 0)
        if not drafted:
            return
        for counts in (self.open, self.offered, self.kept):
            counts.extend([0.0] * (allowed - len(counts)))
        for d in range(allowed):
            self.open[d] = self.open[d] * _DECAY + 1
            self.offered[d] = self.offered[d] * _DECAY + (drafted > d)
            self.kept[d] = self.kept[d] * _DECAY + (accepted > d)

    def chance_of_draft(self) -> float:
        """Share of askings that get a draft."""
        weight = _prior_weight(self.asked) / 2  # silence is told from talk in fewer rounds than good drafts from bad
        return (self.drew + weight) / (self.asked + weight)

    def expected(self, depth: int) -> tuple[float, float]:
        """Mean draft tokens offered and kept in a round that gets a draft and allows `depth` of them."""
        return sum(self._shares(self.offered, depth, 1.0)), sum(self._shares(self.kept, depth, _GUESS))

    def _shares(self, counts: list[float], depth: int, fade: float) -> list[float]:
        """Share of rounds that reach each depth; where little was seen it fades from the depth before."""
        shares, last = [], 1.0
        for d in range(depth):
            opened, reached = (self.open[d], counts[d]) if d < len(self.open) else (0.0, 0.0)
            weight = _prior_weight(opened)
            last = (reached + weight * last * fade) / (opened + weight)
            shares.append(last)
        return shares


def _prior_weight(seen: float) -> float:
    """How many rounds what is expected counts for: it fades like any round, so that in the end what was seen decides.

    After n rounds `seen` is (1 - _DECAY**n) / (1 - _DECAY); the weight is _PRIOR * _DECAY**n.
    """
    return _PRIOR * max(0.0, 1 - (1 - _DECAY) * seen)


class CostBudget(BudgetPolicy):
    """Takes the budget with the least modelled time for each emitted token, or none where none pays.

    A round that drafts costs the drafting, and the verification of a draft if one came; it brings one token and what is
    kept. Drafting starts only where it is modelled to gain a margin, and goes on while it loses nothing. Where it does
    not pay, drafts are tried now and then, so rarely that trials take a hundredth of the time: a drafter that costs
    little is tried often, and comes back soon when the text turns in its favour.
    """

    def __init__(self, times: StepTimes) -> None:
        self.times = times
        self._own: dict[str, Acceptance] = {}
        self._purse: dict[str, float] = {}
        self._drafting = False

    @classmethod
    def measured(cls, target: Target, budget: int) -> CostBudget:
        """A policy whose step times are measured on the target now."""
        return cls(StepTimes.measured(target, budget))

    def choose(self, ids: Sequence[str], most: int) -> int:
        """The best budget up to `most`."""
        best, cost = 1, 1.0
        plain = self.times.verify(len(ids), 1)
        for size in self._sizes(most):
            ratio = self._cost(ids, size) / plain
            if ratio < cost:
                best, cost = size, ratio
        self._drafting = best > 1 and cost < (1.0 if self._drafting else 1 - _GAIN)
        if self._drafting:
            return best
        size = min(most, _TRIAL)
        for request in ids:
            self._purse[request] = self._purse.get(request, 0.0) + _SPEND * plain
        dear = self.times.verify(len(ids), size) + self.times.draft(size) - plain
        return size if size > 1 and any(self._purse[request] >= dear for request in ids) else 1

    def observe(self, result: RoundResult) -> None:
        """Refresh step times and acceptance."""
        self.times.saw_verify(len(result.ids), result.nodes, result.verify_ms)
        if result.budget == 1:
            return
        self.times.saw_draft(result.budget, result.draft_ms)
        spent = result.draft_ms + result.verify_ms - self.times.verify(len(result.ids), 1)
        for request, drafted, accepted in zip(result.ids, result.drafted, result.accepted, strict=True):
            self._purse[request] = max(0.0, self._purse.get(request, 0.0) - max(0.0, spent))
            self._own.setdefault(request, Acceptance()).add(result.budget - 1, drafted, accepted)

    def forget(self, request_id: str) -> None:
        """Drop what was learnt of the request: texts differ so much that one says little about the next."""
        self._own.pop(request_id, None)
        self._purse.pop(request_id, None)

    def _sizes(self, most: int) -> list[int]:
        return [size for size in _SIZES if size < most] + ([most] if most > 1 else [])

    def _cost(self, ids: Sequence[str], size: int) -> float:
        """Modelled milliseconds for each token of one row, in a round with budget `size`."""
        brings, silent, widest = 0.0, 1.0, 0.0
        for request in ids:
            own = self._own.get(request, Acceptance())
            chance = own.chance_of_draft()
            offered, kept = own.expected(size - 1)
            brings += 1 + chance * kept
            silent *= 1 - chance
            widest = max(widest, offered)
        rows = len(ids)
        nodes = min(size, round(widest) + 1)
        verify = (1 - silent) * self.times.verify(rows, nodes) + silent * self.times.verify(rows, 1)
        return (verify + self.times.draft(size)) * rows / brings
