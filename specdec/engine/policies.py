"""Which budget policy an engine gets, and what tells it how good drafts were."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from specdec.drafter import Drafter
from specdec.engine.budget import BudgetPolicy, FixedBudget
from specdec.engine.cost import CostBudget
from specdec.engine.judge import ByVerdict, Judge
from specdec.engine.steptime import StepTimes
from specdec.engine.watch import ByText
from specdec.engine.worth import WorthBudget
from specdec.target import Target
from specdec.verifier import Verifier


def policy_for(
    name: str, target: Target, drafter: Drafter, verifier: Verifier, budget: int
) -> tuple[BudgetPolicy, Callable[[], Judge]]:
    """The policy called `name`, and what makes the judge of a session; "cost" measures the target's step times."""
    if name == "fixed" or budget == 1:
        fixed = FixedBudget()
        return fixed, partial(ByVerdict, drafter, fixed)
    times = StepTimes.measured(target, budget)
    by_match = verifier.lossless and not verifier.needs_q and not drafter.spec.trees
    if by_match and torch.device(target.spec.device).type == "cpu":  # elsewhere, to look at a draft is to wait for it
        worth = WorthBudget(times)
        return worth, partial(ByText, drafter, worth)
    cost = CostBudget(times)
    return cost, partial(ByVerdict, drafter, cost)
