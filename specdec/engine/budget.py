"""How many nodes a round may draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one round cost.

    ids: the requests of the batch; budget: nodes that were asked for; nodes: N of the draft that was verified, the
    anchor included. draft_ms counts proposing and learning, verify_ms scoring, accepting and committing.
    """

    ids: Sequence[str]
    budget: int
    nodes: int
    draft_ms: float
    verify_ms: float


class BudgetPolicy(ABC):
    """Chooses the budget of each round from what rounds cost and brought so far."""

    @abstractmethod
    def choose(self, ids: Sequence[str], most: int) -> int:
        """Nodes for the next round of these requests, the anchor included: 1 to `most`; 1 drafts nothing."""

    def learn(self, request_id: str, allowed: int, drafted: int, kept: int) -> None:
        """A draft of the request proved right in its first `kept` tokens, of `drafted` that came and `allowed`."""

    def observe(self, result: RoundResult) -> None:
        """Learn what a round cost."""

    def forget(self, request_id: str) -> None:
        """The request ended."""


class FixedBudget(BudgetPolicy):
    """The most that is allowed, always."""

    def choose(self, ids: Sequence[str], most: int) -> int:
        """`most`."""
        return most
