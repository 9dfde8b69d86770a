"""How long drafting and verifying take: measured once, refreshed by every round."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median, median_low
from time import perf_counter

import torch

from specdec.target import Target
from specdec.types import Draft

_KEEP = 0.9
_REPEATS = 3
_RECENT = 15


class StepTimes:
    """Milliseconds by rows x nodes, between measured points by interpolation, and of drafting by budget."""

    def __init__(self, verify_ms: dict[int, float]) -> None:
        self._verify = dict(sorted(verify_ms.items()))
        self._speed: deque[float] = deque(maxlen=_RECENT)
        self._shape: dict[tuple[int, int], deque[float]] = {}
        self._draft: dict[int, float] = {}

    @classmethod
    def measured(cls, target: Target, budget: int) -> StepTimes:
        """Times on an idle target, for 1 to `budget` nodes of one row and as many tokens as two rows have.

        Opens and closes slot 0, which no request may hold.
        """
        spec = target.spec
        slot = torch.zeros(1, dtype=torch.int64, device=spec.device)
        length = max(1, min(64, spec.max_len - budget - 2))
        target.open(slot, [torch.zeros(length, dtype=torch.int64, device=spec.device)])
        sizes = sorted({1, 2, 4, 8, 16, 32, 64, budget} & set(range(min(2 * budget, spec.max_budget) + 1)))
        times = {}
        for size in sizes:
            draft = Draft.chain(slot, torch.zeros(1, size - 1, dtype=torch.int64, device=spec.device))
            times[size] = median(_time(target, slot, length, draft) for _ in range(_REPEATS + 1))
        target.close(slot)
        return cls(times)

    def verify(self, rows: int, nodes: int) -> float:
        """Milliseconds to score, accept and commit: the table at the machine's speed now, corrected by rounds."""
        return self._table(rows * nodes) * self._now() * self._correction(rows, nodes)

    def draft(self, budget: int) -> float:
        """Milliseconds to propose and learn; in proportion to draft tokens where a budget was not seen."""
        if budget in self._draft:
            return self._draft[budget]
        if not self._draft:
            return 0.0
        near = min(self._draft, key=lambda b: abs(b - budget))
        return self._draft[near] * max(1.0, (budget - 1) / (near - 1))

    def saw_verify(self, rows: int, nodes: int, ms: float) -> None:
        """A round's verification took so long.

        What all rounds share (a busy machine, a longer text) is kept apart from what one shape has, so that a slow
        minute does not speak against the shapes that happened to be seen in it.
        """
        slower = ms / self._table(rows * nodes)
        self._speed.append(slower / self._correction(rows, nodes))
        self._shape.setdefault((rows, nodes), deque(maxlen=_RECENT)).append(slower / self._now())

    def saw_draft(self, budget: int, ms: float) -> None:
        """A round's drafting took so long."""
        self._draft[budget] = _blend(self._draft.get(budget), ms)

    def _table(self, tokens: int) -> float:
        sizes = list(self._verify)
        at = bisect_left(sizes, tokens)
        if at < len(sizes) and sizes[at] == tokens:
            return self._verify[tokens]
        if at == len(sizes):
            return self._verify[sizes[-1]] * tokens / sizes[-1]
        low, high = sizes[at - 1], sizes[at]
        share = (tokens - low) / (high - low)
        return self._verify[low] * (1 - share) + self._verify[high] * share

    def _now(self) -> float:
        """How much slower rounds are than the table says."""
        return median_low(self._speed) if self._speed else 1.0

    def _correction(self, rows: int, nodes: int) -> float:
        """How much slower this shape is than the table says, beyond what all are; 1 until it was seen often enough."""
        seen = self._shape.get((rows, nodes), ())
        return median_low(seen) if len(seen) > _RECENT // 2 else 1.0


def _blend(old: float | None, new: float) -> float:
    return new if old is None else _KEEP * old + (1 - _KEEP) * min(new, 4 * old)


def _time(target: Target, slot: torch.Tensor, length: int, draft: Draft) -> float:
    start = perf_counter()
    scores = target.score(slot, torch.full_like(slot, length + 1), draft)
    scores.logits.argmax(-1).tolist()
    return (perf_counter() - start) * 1e3
