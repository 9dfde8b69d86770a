"""Between the engine and the store of state: what a prompt finds when it opens, and what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.errors import CompositionError, OptionError
from specdec.state import Branch, StateKey, StateStore, files
from specdec.state.key import namespace
from specdec.target import Resumable, Target
from specdec.types import Scores

if TYPE_CHECKING:
    from specdec.engine.row import Row


class StateKeeper:
    """Reuses keys and values of prompts with the same first tokens, within one owner and one model.

    Only rows that a prefill wrote are kept, bit by bit: rows of answers were written by narrower forwards.
    """

    def __init__(self, target: Target, store: StateStore) -> None:
        if not isinstance(target, Resumable):
            raise CompositionError(
                f"state_bytes={store.max_bytes} was asked for; {type(target).__name__} cannot take up a prompt in the "
                "middle (it has no resume, take_rows and put_rows). Set state_bytes=0 or use a target that can."
            )
        self.store = store
        self._target: Resumable = target
        self._like = target.take_rows(0, 0, 0)
        one = target.take_rows(0, 0, 1)
        self.row_bytes = one[0].nbytes + one[1].nbytes
        if store.max_bytes < self.row_bytes:
            raise OptionError(
                f"state_bytes={store.max_bytes} was asked for; one token's keys and values take {self.row_bytes} "
                "bytes. Raise it, or set it to 0 to keep nothing."
            )
        self._opened: set[int] = set()
        self._whole = target

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values held now."""
        return self.store.nbytes

    @property
    def max_len(self) -> int:
        """Tokens a sequence may have."""
        return self._whole.spec.max_len

    def open(self, target: Target, rows: Sequence[Row]) -> Scores:
        """Prefill the rows' slots, as far as their first tokens are not known; writes the rows' counts.

        target: the engine's, which checks what it returns where checks are on; it prefills prompts nobody knows.
        """
        for row in rows:
            start = perf_counter()
            self._fill(row)
            row.state_ms = (perf_counter() - start) * 1e3
        total = sum(row.state_ms for row in rows)
        device, prompts = target.spec.device, [row.request.ids for row in rows]
        slots = torch.tensor([row.slot for row in rows], dtype=torch.int64, device=device)
        cached = [row.reused + row.ahead for row in rows]
        scores = self._target.resume(slots, prompts, cached) if any(cached) else target.open(slots, prompts)
        for row in rows:
            row.state_ms = total  # rows of a batch wait for each other
            self._opened.add(row.slot)
        return scores

    def close(self, rows: Sequence[Row]) -> None:
        """Keep the rows of the prompts whose prefill was done; slots are still those of the rows."""
        for row in rows:
            if row.slot not in self._opened:
                continue
            self._opened.remove(row.slot)
            start = perf_counter()
            self.keep(row.request.owner, row.request.session, row.ids, row.slot, row.request.call, row.request.marks)
            row.state_ms += (perf_counter() - start) * 1e3

    def key(self, owner: str | None, session: str | None) -> StateKey | None:
        """Where state of that owner and session is kept; None if neither is named."""
        name = namespace(owner, session)
        return None if name is None else StateKey(name, self._target.identity)

    def keep(
        self,
        owner: str | None,
        session: str | None,
        ids: Sequence[int],
        slot: int,
        call: str | None,
        marks: Sequence[int] = (),
        *,
        ahead: bool = False,
    ) -> None:
        """Copy what the store does not know of the rows of `ids` in the slot; ahead: gap work wrote them."""
        key = self.key(owner, session)
        if key is not None:
            read, size = partial(self._target.take_rows, slot), self.row_bytes
            self.store.insert(key, ids, read, size, call=call, marks=marks, ahead=ahead)

    def fill_known(self, owner: str | None, session: str | None, ids: Sequence[int], slot: int) -> int:
        """Copy the rows of the longest known prefix into a free slot; how many tokens it has.

        If that is all of them, nothing is copied.
        """
        key = self.key(owner, session)
        if key is None:
            return 0
        with self.store.find(key, ids) as branch:
            if branch.tokens < len(ids):
                self._put(slot, branch)
            return branch.tokens

    def prefill(self, slot: int, prompt: Tensor, cached: int) -> None:
        """Write the rows of the prompt's tokens from `cached` on into the slot."""
        device = self._whole.spec.device
        self._target.resume(torch.tensor([slot], device=device), [prompt.to(device)], [cached])

    def leave(self, slot: int) -> None:
        """Close a slot that gap work had filled."""
        self._whole.close(torch.tensor([slot], device=self._whole.spec.device))

    def save(self, path: str | Path, *, owner: str | None = None, session: str | None = None) -> int:
        """Write what is kept, of one owner or session or of all, to a safetensors file; returns its bytes.

        The file is replaced whole or not at all. It holds what prompts said, in tokens and in keys and values.
        """
        return files.save(self.store, path, self._target.identity, namespace(owner, session))

    def load(self, path: str | Path) -> int:
        """Add a saved file; returns the tokens added.

        Raises OptionError if the file is broken, or another model, dtype or adapter wrote it.
        """
        return files.load(self.store, path, self._target.identity, self._like)

    def forget(self, *, owner: str | None = None, session: str | None = None) -> None:
        """Drop all that is kept for an owner, or for a session without one."""
        name = namespace(owner, session)
        if name is None:
            raise OptionError("forget was called with neither owner nor session. Name one of them.")
        self.store.forget(name)

    def _fill(self, row: Row) -> None:
        """Copy the rows of the longest known prefix into the row's slot; the last token is left to be scored."""
        key = self.key(row.request.owner, row.request.session)
        if key is None:
            return
        branch, row.ahead = self.store.claim(key, row.ids[:-1])
        with branch:
            row.reused = branch.tokens - row.ahead
            self._put(row.slot, branch)

    def _put(self, slot: int, branch: Branch) -> None:
        at = 0
        for segment in branch.segments:
            self._target.put_rows(slot, at, segment.rows)
            at += segment.tokens
