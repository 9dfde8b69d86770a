"""How long drafting and verifying take: measured once, refreshed by every round."""

from __future__ import annotations

from bisect import bisect_left
from statistics import median
from time import perf_counter

import torch

from specdec.target import Target
from specdec.types import Draft

_KEEP = 0.9
_REPEATS = 3


class StepTimes:
    """Milliseconds by rows x nodes, between measured points by interpolation, and of drafting by budget."""

    def __init__(self, verify_ms: dict[int, float]) -> None:
        self._verify = dict(sorted(verify_ms.items()))
        self._seen: dict[tuple[int, int], float] = {}
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
        """Milliseconds to score, accept and commit; seen rounds count more than the table."""
        seen = self._seen.get((rows, nodes))
        return seen if seen is not None else self._table(rows * nodes) * self._drift(rows)

    def draft(self, budget: int) -> float:
        """Milliseconds to propose and learn; in proportion to draft tokens where a budget was not seen."""
        if budget in self._draft:
            return self._draft[budget]
        if not self._draft:
            return 0.0
        near = min(self._draft, key=lambda b: abs(b - budget))
        return self._draft[near] * max(1.0, (budget - 1) / (near - 1))

    def saw_verify(self, rows: int, nodes: int, ms: float) -> None:
        """A round's verification took so long."""
        self._seen[rows, nodes] = _blend(self._seen.get((rows, nodes)), ms)

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

    def _drift(self, rows: int) -> float:
        """How much slower rounds are than the table says, by the smallest one seen for these rows."""
        nodes = min((n for r, n in self._seen if r == rows), default=0)
        return self._seen[rows, nodes] / self._table(rows * nodes) if nodes else 1.0


def _blend(old: float | None, new: float) -> float:
    return new if old is None else _KEEP * old + (1 - _KEEP) * min(new, 4 * old)


def _time(target: Target, slot: torch.Tensor, length: int, draft: Draft) -> float:
    start = perf_counter()
    scores = target.score(slot, torch.full_like(slot, length + 1), draft)
    scores.logits.argmax(-1).tolist()
    return (perf_counter() - start) * 1e3
