"""How the budget policy hears of a draft's worth: from the verdict on it, or from the text that came."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from specdec.drafter import Drafter
from specdec.engine.budget import BudgetPolicy
from specdec.engine.harvest import Harvest


class Judge(ABC):
    """Stands between one session, its drafter and its policy. drafter: the one that rounds ask."""

    drafter: Drafter

    def begin(self, ids: Sequence[str]) -> None:
        """A round of these requests begins."""

    @abstractmethod
    def settle(self, ids: Sequence[str], harvest: Harvest) -> None:
        """Tell the policy what a round of these requests showed about drafts."""

    def forget(self, request_id: str) -> None:
        """The request ended."""


class ByVerdict(Judge):
    """What was verified says how good it was; what was not says nothing."""

    def __init__(self, drafter: Drafter, policy: BudgetPolicy) -> None:
        self.drafter, self._policy = drafter, policy

    def settle(self, ids: Sequence[str], harvest: Harvest) -> None:
        """See `Judge`."""
        if harvest.budget == 1:
            return
        for request, drafted, accepted in zip(ids, harvest.drafted, harvest.accepted, strict=True):
            self._policy.learn(request, harvest.budget - 1, drafted, accepted)
