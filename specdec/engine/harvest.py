"""What a round brought, read from the device in one go: the round's only sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.engine.budget import RoundResult
from specdec.lanes import Serial
from specdec.round import Round

_DRAFT = ("draft", "draft_ahead", "commit_draft")
_VERIFY = ("verify", "accept", "commit")


@dataclass(frozen=True, slots=True)
class Harvest:
    """Per row: emitted tokens, draft tokens verified and kept; and the round's milliseconds."""

    tokens: list[list[int]]
    drafted: list[int]
    accepted: list[int]
    budget: int
    nodes: int
    draft_ms: float
    verify_ms: float

    def result(self, ids: Sequence[str]) -> RoundResult:
        """What the budget policy learns from."""
        return RoundResult(ids, self.budget, self.nodes, self.draft_ms, self.verify_ms)


def read(done: Round, budget: int, lanes: Serial) -> Harvest:
    """Wait for the verdict and copy it to the host."""
    drafted = done.draft.used.sum(1, keepdim=True) - 1
    accepted = done.verdict.accepted[:, None]
    lines = torch.cat([accepted, drafted, done.verdict.emitted(done.draft)], 1).tolist()
    ms = lanes.ms
    return Harvest(
        tokens=[line[2 : line[0] + 3] for line in lines],
        drafted=[line[1] for line in lines],
        accepted=[line[0] for line in lines],
        budget=budget,
        nodes=done.draft.nodes,
        draft_ms=sum(ms.get(stage, 0.0) for stage in _DRAFT),
        verify_ms=sum(ms.get(stage, 0.0) for stage in _VERIFY),
    )
