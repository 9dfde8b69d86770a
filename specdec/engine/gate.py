"""Keeps gap work and requests apart: a request that comes ends gap work, and while one is there none begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakSet


class Gate:
    """Requests go first: rows that wait or are decoded `join` it, and `leave` when they end.

    A row of a session that was dropped without being closed leaves with it.
    """

    def __init__(self) -> None:
        self._rows: WeakSet[object] = WeakSet()
        self._coming = 0
        self._count = Lock()
        self._work = Lock()

    @property
    def wanted(self) -> bool:
        """Whether a request has come or is coming, so that gap work has to end."""
        return self._coming > 0 or len(self._rows) > 0

    def join(self, rows: Iterable[object]) -> None:
        """Rows are there; called while they arrive."""
        with self._count:
            self._rows.update(rows)

    def leave(self, row: object) -> None:
        """A row ended."""
        with self._count:
            self._rows.discard(row)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """A request arrives: gap work under way is told to end, and waited for."""
        with self._count:
            self._coming += 1
        try:
            with self._work:
                yield
        finally:
            with self._count:
                self._coming -= 1

    @contextmanager
    def gap(self) -> Iterator[bool]:
        """The time between requests, for one caller at a time; False, and nothing may be done, while any is there."""
        if not self._work.acquire(blocking=False):
            yield False
            return
        try:
            yield not self.wanted
        finally:
            self._work.release()
