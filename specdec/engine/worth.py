"""The cost policy for drafts that are seen before they are verified."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.engine.acceptance import ByLength
from specdec.engine.cost import CostBudget
from specdec.engine.steptime import StepTimes

_COUNTS = (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 23, 31, 47)
_GAIN = 0.02
_LEAST = 4


class WorthBudget(CostBudget):
    """A cost policy that decides again once the draft is there: how much of it to verify, down to nothing.

    For chains on the host under a rule that keeps a draft token where it is the token that comes. Then the text itself
    says how right a draft was, verified or not, so that a drafter is tried at no more than the time of drafting.
    Drafts are judged by their length: one that the drafter made longer is trusted further.
    """

    def __init__(self, times: StepTimes) -> None:
        super().__init__(times)
        self._lengths: dict[str, ByLength] = {}

    def worth(self, ids: Sequence[str], lengths: Sequence[int]) -> int:
        """Draft tokens of each row worth verifying; lengths: those that came."""
        rows, longest = len(ids), max(lengths)
        plain = self.times.verify(rows, 1)
        best, least = 0, 1 - _GAIN
        for count in [count for count in _COUNTS if count < longest] + [longest]:
            brings = sum(1 + self._kept(name, n, count) for name, n in zip(ids, lengths, strict=True))
            cost = self.times.verify(rows, count + 1) / plain * rows / brings
            if cost < least:
                best, least = count, cost
        return best

    def learn(self, request_id: str, allowed: int, drafted: int, kept: int) -> None:
        """See `BudgetPolicy`."""
        super().learn(request_id, allowed, drafted, kept)
        if drafted:
            self._lengths.setdefault(request_id, ByLength()).of(drafted).add(allowed, drafted, kept)

    def forget(self, request_id: str) -> None:
        """See `CostBudget`."""
        super().forget(request_id)
        self._lengths.pop(request_id, None)

    def _trial(self, ids: Sequence[str], most: int) -> int:
        """The largest budget whose drafting the round's share pays for, else a small one that was saved up for."""
        least = min(most, _LEAST)
        if least <= 1 or not self._save(ids, self.times.draft(least)):
            return 1
        rich = max(self._purse[request] for request in ids)
        return max(size for size in (least, *self._sizes(most)) if size == least or self.times.draft(size) <= rich)

    def _kept(self, request: str, length: int, count: int) -> float:
        if not length:
            return 0.0
        return self._lengths.get(request, ByLength()).of(length).expected_kept(min(count, length))
