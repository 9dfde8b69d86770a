"""The budget policy that weighs a measured step time against the acceptance seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.engine.budget import BudgetPolicy, RoundResult
from specdec.engine.steptime import StepTimes
from specdec.target import Target

_SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
_DECAY = 0.95
_PRIOR = 3.0
_GAIN = 0.02
_WAIT = (8, 256)


@dataclass(slots=True)
class Acceptance:
    """How deep drafts were kept, recent rounds weighing more.

    tried[d], kept[d]: rounds whose draft reached depth d + 1, and whose path was kept that deep. asked, drew:
    rounds that asked for a draft, and that got one.
    """

    tried: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    asked: float = 0.0
    drew: float = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """One round: draft tokens on the longest path, and how many were kept."""
        while len(self.tried) < drafted:
            self.tried.append(0.0)
            self.kept.append(0.0)
        self.asked = self.asked * _DECAY + 1
        self.drew = self.drew * _DECAY + (drafted > 0)
        if not drafted:
            return
        for d in range(min(drafted, accepted + 1)):
            self.tried[d] = self.tried[d] * _DECAY + 1
            self.kept[d] = self.kept[d] * _DECAY + (accepted > d)

    def rates(self, depth: int, prior: Acceptance | None = None) -> list[float]:
        """Chance that depth d + 1 is kept once depth d was, for d below `depth`; the prior counts as a few rounds."""
        inherited = prior.rates(depth) if prior is not None else None
        rates, last = [], 0.7
        for d in range(depth):
            expected = last if inherited is None else inherited[d]
            tried = self.tried[d] if d < len(self.tried) else 0.0
            kept = self.kept[d] if d < len(self.kept) else 0.0
            last = (kept + _PRIOR * expected) / (tried + _PRIOR)
            rates.append(last)
        return rates

    def chance_of_draft(self, prior: Acceptance | None = None) -> float:
        """Share of askings that got a draft."""
        expected = prior.chance_of_draft() if prior is not None else 1.0
        return (self.drew + _PRIOR * expected) / (self.asked + _PRIOR)


class CostBudget(BudgetPolicy):
    """Takes the budget with the least modelled time for each emitted token, or none where none pays.

    A round that drafts costs the drafting, and the verification of a draft if one came; it brings one token and what is
    kept. Drafting starts only where it is modelled to gain a margin; where it does not, one round is spent on a
    trial now and then, ever more rarely while trials fail.
    """

    def __init__(self, times: StepTimes) -> None:
        self.times = times
        self._all = Acceptance()
        self._own: dict[str, Acceptance] = {}
        self._idle = 0
        self._wait = _WAIT[0]
        self._trial = False

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
        if best > 1 and cost < 1 - _GAIN:
            self._idle, self._wait, self._trial = 0, _WAIT[0], False
            return best
        self._idle += 1
        if most > 1 and self._idle >= self._wait:
            self._idle, self._trial = 0, True
            self._wait = min(2 * self._wait, _WAIT[1])
            return min(most, 4)
        return 1

    def observe(self, result: RoundResult) -> None:
        """Refresh step times and acceptance."""
        self.times.saw_verify(len(result.ids), result.nodes, result.verify_ms)
        if result.budget == 1:
            return
        self.times.saw_draft(result.budget, result.draft_ms)
        for request, drafted, accepted in zip(result.ids, result.drafted, result.accepted, strict=True):
            self._own.setdefault(request, Acceptance()).add(drafted, accepted)
            self._all.add(drafted, accepted)

    def forget(self, request_id: str) -> None:
        """Drop what was learnt of one request; what it taught about all stays."""
        self._own.pop(request_id, None)

    def _sizes(self, most: int) -> list[int]:
        return [size for size in _SIZES if size < most] + ([most] if most > 1 else [])

    def _cost(self, ids: Sequence[str], size: int) -> float:
        """Modelled milliseconds for each token of one row, in a round with budget `size`."""
        brings, idle = 0.0, 1.0
        for request in ids:
            own = self._own.get(request, Acceptance())
            chance = own.chance_of_draft(self._all)
            reach, kept = 1.0, 0.0
            for rate in own.rates(size - 1, self._all):
                reach *= rate
                kept += reach
            brings += 1 + chance * kept
            idle *= 1 - chance
        rows = len(ids)
        verify = (1 - idle) * self.times.verify(rows, size) + idle * self.times.verify(rows, 1)
        return (verify + self.times.draft(size)) * rows / brings
