"""Work in the gap before the next request: prefill what its prompt is certain to begin with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from specdec.engine.gate import Gate
from specdec.engine.keeper import StateKeeper
from specdec.engine.slots import SlotPool
from specdec.errors import CapacityError, OptionError

_SLICE_S = 0.05
_FIRST, _LEAST, _MOST = 16, 8, 512


@dataclass(frozen=True, slots=True)
class GapReport:
    """What gap work did.

    prefix_tokens: those that were named; known_tokens: of them, those whose rows were there; prefilled_tokens: those
    it prefilled. stopped: "done", "time" (the budget was spent), or "request" (one came, was there, or held all slots).
    """

    prefix_tokens: int
    known_tokens: int
    prefilled_tokens: int
    stopped: str
    ms: float


class GapWork:
    """Prefills in slices of about a twentieth of a second, so that a request never waits for more than one of them."""

    def __init__(self, keeper: StateKeeper, slots: SlotPool, gate: Gate) -> None:
        self._keeper, self._slots, self._gate = keeper, slots, gate
        self._per_token = _SLICE_S / _FIRST  # seconds, from the slice before

    def run(self, budget_s: float, ids: Sequence[int], *, owner: str | None, session: str | None) -> GapReport:
        """Prefill `ids` as far as time allows and no request comes, and keep the rows; writes a free slot's rows."""
        start = perf_counter()
        self._check(budget_s, ids, owner, session)
        known = done = 0
        with self._gate.gap() as free:
            if not free or not self._slots.free:
                return GapReport(len(ids), 0, 0, "request", (perf_counter() - start) * 1e3)
            slot = self._slots.take()
            try:
                known = self._keeper.fill_known(owner, session, ids, slot)
                done, stopped = self._prefill(slot, ids, known, start + budget_s)
                if done > known:
                    self._keeper.keep(owner, session, ids[:done], slot, None, ahead=True)
            finally:
                self._slots.give_back(slot)
                self._keeper.leave(slot)
        return GapReport(len(ids), known, done - known, stopped, (perf_counter() - start) * 1e3)

    def _prefill(self, slot: int, ids: Sequence[int], done: int, deadline: float) -> tuple[int, str]:
        """How many of the tokens have rows now, and why it ended."""
        prompt = torch.tensor(ids, dtype=torch.int64)
        while done < len(ids):
            if self._gate.wanted:
                return done, "request"
            now = perf_counter()
            size = min(len(ids) - done, _MOST, int(min(_SLICE_S, deadline - now) / self._per_token))
            if size < min(_LEAST, len(ids) - done):
                if deadline - now < _SLICE_S:
                    return done, "time"
                size = min(_LEAST, len(ids) - done)  # a slow machine: a slice takes longer than it should
            self._keeper.prefill(slot, prompt[: done + size], done)
            self._per_token = (perf_counter() - now) / size
            done += size
        return done, "done"

    def _check(self, budget_s: float, ids: Sequence[int], owner: str | None, session: str | None) -> None:
        if isinstance(budget_s, bool) or not isinstance(budget_s, int | float) or not 0 <= budget_s < math.inf:
            raise OptionError(f"budget_s is a finite number of seconds of at least 0; found {budget_s!r}.")
        if owner is None and session is None:
            raise OptionError(
                "idle was called with neither owner nor session, so what it prefills would belong to nobody. "
                "Name the one of the request to come."
            )
        if len(ids) > self._keeper.max_len:
            raise CapacityError(
                f"known_prefix has {len(ids)} tokens; the target holds {self._keeper.max_len} positions. Shorten it."
            )
