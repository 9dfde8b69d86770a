"""The budget policy that weighs a measured step time against the acceptance seen so far."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.engine.acceptance import Acceptance
from specdec.engine.budget import BudgetPolicy, RoundResult
from specdec.engine.steptime import StepTimes

_SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
_GAIN = 0.02
_TRIAL = 4
_SPEND = 0.01
_TRIALS = 4


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

    def choose(self, ids: Sequence[str], most: int) -> int:
        """The best budget up to `most`."""
        best, cost = 1, 1.0
        plain = self.times.verify(len(ids), 1)
        for size in self._sizes(most):
            ratio = self._cost(ids, size) / plain
            if ratio < cost:
                best, cost = size, ratio
        self._drafting = best > 1 and cost < (1.0 if self._drafting else 1 - _GAIN)
        return best if self._drafting else self._trial(ids, most)

    def learn(self, request_id: str, allowed: int, drafted: int, kept: int) -> None:
        """See `BudgetPolicy`."""
        self._own.setdefault(request_id, Acceptance()).add(allowed, drafted, kept)

    def observe(self, result: RoundResult) -> None:
        """Refresh step times, and pay for what was tried."""
        self.times.saw_verify(len(result.ids), result.nodes, result.verify_ms)
        if result.budget == 1:
            return
        self.times.saw_draft(result.budget, result.draft_ms)
        spent = result.draft_ms + result.verify_ms - self.times.verify(len(result.ids), 1)
        for request in result.ids:
            self._purse[request] = max(0.0, self._purse.get(request, 0.0) - max(0.0, spent))

    def forget(self, request_id: str) -> None:
        """Drop what was learnt of the request: texts differ so much that one says little about the next."""
        self._own.pop(request_id, None)
        self._purse.pop(request_id, None)

    def _trial(self, ids: Sequence[str], most: int) -> int:
        """A small budget once some request has saved up for it, or 1."""
        size = min(most, _TRIAL)
        return size if size > 1 and self._save(ids, self._price(ids, size)) else 1

    def _save(self, ids: Sequence[str], price: float) -> bool:
        """Put the round's share by, up to a few times the price; whether some request can pay it."""
        share = _SPEND * self.times.verify(len(ids), 1)
        for request in ids:
            self._purse[request] = min(_TRIALS * price + share, self._purse.get(request, 0.0) + share)
        return any(self._purse[request] >= price for request in ids)

    def _price(self, ids: Sequence[str], size: int) -> float:
        """Milliseconds that a trial of `size` nodes adds to a round."""
        return self.times.draft(size) + self.times.verify(len(ids), size) - self.times.verify(len(ids), 1)

    def _sizes(self, most: int) -> list[int]:
        return [size for size in _SIZES if size < most] + ([most] if most > 1 else [])

    def _cost(self, ids: Sequence[str], size: int) -> float:
        """Modelled milliseconds for each token of one row, in a round with budget `size`."""
        brings, silent, widest = 0.0, 1.0, 0.0
        for request in ids:
            own = self._own.get(request, Acceptance())
            chance = own.chance_of_draft()
            brings += 1 + chance * own.expected_kept(size - 1)
            silent *= 1 - chance
            widest = max(widest, own.expected_offered(size - 1))
        rows = len(ids)
        nodes = min(size, round(widest) + 1)
        verify = (1 - silent) * self.times.verify(rows, nodes) + silent * self.times.verify(rows, 1)
        return (verify + self.times.draft(size)) * rows / brings
