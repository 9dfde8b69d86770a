"""The rows that are being decoded now, and their context on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specdec.engine.parts import Parts
from specdec.engine.row import Row
from specdec.errors import ContractError
from specdec.sampling import Sampling
from specdec.types import Context


class Batch:
    """Rows in step with the rows of `ctx`; budget: nodes of the round that is under way."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ctx: Context | None = None
        self.rows: list[Row] = []
        self.budget = 1

    @property
    def ctx(self) -> Context:
        """The context of the round under way."""
        if self._ctx is None:
            raise ContractError("a verb was called on a session without rows. Loop while session.active.")
        return replace(self._ctx, budget=self.budget)

    def choose(self, budget: int | None) -> None:
        """Fix the budget of the next round: what is asked, or what the policy chooses, within what can count."""
        room = max((row.stopper.remaining for row in self.rows), default=1)
        most = max(1, min(self._parts.budget, room))
        asked = self._parts.policy.choose([row.id for row in self.rows], most) if budget is None else budget
        self.budget = max(1, min(asked, most))

    def join(self, rows: Sequence[Row]) -> None:
        """Rows whose first token is known begin their rounds."""
        fresh = self._context_of(rows)
        if self._ctx is None or not self.rows:
            self._ctx = fresh
        else:
            old = self._ctx
            self._ctx = replace(
                old,
                slots=torch.cat([old.slots, fresh.slots]),
                lengths=torch.cat([old.lengths, fresh.lengths]),
                tail=torch.cat([old.tail, fresh.tail]),
                room=None if old.room is None or fresh.room is None else torch.cat([old.room, fresh.room]),
            )
        self.rows = [*self.rows, *rows]
        self._resample()

    def advance(self, ctx: Context) -> None:
        """The context after a round; its rows are still those of `rows`."""
        self._ctx = ctx

    def leave(self, rows: Sequence[Row]) -> None:
        """Offer the rows' state to whoever keeps it, close their slots, and drop them from the batch."""
        try:
            if self._parts.keeper is not None:
                self._parts.keeper.close(rows)
        finally:
            self._free(rows)

    def _free(self, rows: Sequence[Row]) -> None:
        device = self._parts.target.spec.device
        slots = torch.tensor([row.slot for row in rows], dtype=torch.int64, device=device)
        gone = set(map(id, rows))
        keep = [b for b, row in enumerate(self.rows) if id(row) not in gone]
        self.rows = [self.rows[b] for b in keep]
        if self._ctx is not None and len(self._ctx.lengths) != len(keep):
            self._ctx = self._ctx.rows(torch.tensor(keep, dtype=torch.int64, device=device))
        for row in rows:
            self._parts.slots.give_back(row.slot)
            row.slot = -1
        self._resample()
        try:
            self._parts.target.close(slots)
        finally:
            self._parts.drafter.close(slots)

    def _context_of(self, rows: Sequence[Row]) -> Context:
        parts, device = self._parts, self._parts.target.spec.device
        window = max(1, parts.drafter.spec.window)

        def column(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        tails = [[*row.ids[-window:], *row.tokens][-window:] for row in rows]
        return Context(
            slots=column([row.slot for row in rows]),
            lengths=column([len(row.ids) + len(row.tokens) for row in rows]),
            tail=torch.tensor([[-1] * (window - len(t)) + t for t in tails], dtype=torch.int64, device=device),
            budget=parts.budget,
            sampling=self._sampling(rows),
            wants_q=parts.verifier.needs_q,
            room=column([row.stopper.remaining - 1 for row in rows]),
        )

    def _sampling(self, rows: Sequence[Row]) -> Sampling:
        device = self._parts.target.spec.device
        return Sampling.of([row.request.params for row in rows], [row.seed for row in rows], device)

    def _resample(self) -> None:
        """The sampling rule is that of the rows there are now."""
        if self._ctx is not None:
            self._ctx = replace(self._ctx, sampling=self._sampling(self.rows))
