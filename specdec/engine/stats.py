"""Counters of a session; they live on the device until they are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specdec.types import Verdict


@dataclass(frozen=True, slots=True)
class SessionReport:
    """Counts over all rows of a session: tau is emitted / rounds, a round counted once for each of its rows.

    emitted: tokens the rule let through, those after a stop included. accepted_at[d]: share of row rounds that kept a
    draft token at depth d + 1.
    """

    rounds: int
    emitted: int
    accepted_at: tuple[float, ...]

    @property
    def tau(self) -> float:
        """Mean tokens emitted a round."""
        return self.emitted / self.rounds if self.rounds else 0.0


class SessionStats:
    """Adds up verdicts without reading them; `read` is the only sync."""

    def __init__(self, depth: int, device: torch.device) -> None:
        self._kept = torch.zeros(depth + 1, dtype=torch.int64, device=device)
        self._depths = torch.arange(depth + 1, device=device)

    def add(self, verdict: Verdict) -> None:
        """Count one round of each row; no sync."""
        self._kept += (verdict.accepted[:, None] >= self._depths).sum(0)

    def read(self) -> SessionReport:
        """The counts so far; waits for the device."""
        kept = self._kept.tolist()
        rounds = kept[0]
        deepest = max((d for d, count in enumerate(kept) if count), default=0)
        shares = tuple(count / rounds for count in kept[1 : deepest + 1]) if rounds else ()
        return SessionReport(rounds, sum(kept), shares)

    @property
    def tau(self) -> float:
        """Mean tokens emitted a round so far; waits for the device."""
        return self.read().tau
