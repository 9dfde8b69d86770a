"""Where the work of a round runs: lanes are a policy around the same calls, never another order of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter


class Lanes(ABC):
    """Two lanes, one for the target and one for the drafter.

    `draft` and `verify` enter a lane for the stage they name; `join` ends the round: after it, work of either
    lane is seen by both.
    """

    @abstractmethod
    def draft(self, stage: str) -> AbstractContextManager[None]:
        """Enter the drafter's lane."""

    @abstractmethod
    def verify(self, stage: str) -> AbstractContextManager[None]:
        """Enter the target's lane; work of the drafter's lane so far is seen in it."""

    def join(self) -> None:
        """Both lanes meet."""


class Serial(Lanes):
    """One stage after another on the caller's thread; `ms` holds the milliseconds of each since `reset`."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    def reset(self) -> None:
        """Start counting afresh."""
        self.ms = {}

    def draft(self, stage: str) -> AbstractContextManager[None]:
        """The caller's thread."""
        return self._timed(stage)

    def verify(self, stage: str) -> AbstractContextManager[None]:
        """The caller's thread."""
        return self._timed(stage)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.ms[stage] = self.ms.get(stage, 0.0) + (perf_counter() - start) * 1e3
