"""The contract of a constraint, and the view of one row's draft that it gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from specdec.types import Draft


@dataclass(frozen=True, eq=False)
class Nodes:
    """One row of a draft: tokens [N], parents [N], ancestors [N, N], depth [N]; and the same on the host."""

    tokens: Tensor
    parents: Tensor
    ancestors: Tensor
    depth: Tensor

    @classmethod
    def of(cls, draft: Draft, row: int) -> Nodes:
        """Row `row` of the draft."""
        return cls(draft.tokens[row], draft.parents[row], draft.ancestors[row], draft.depth[row])

    @cached_property
    def parent_list(self) -> list[int]:
        """Parents on the host."""
        return [int(p) for p in self.parents.tolist()]

    @cached_property
    def token_list(self) -> list[int]:
        """Tokens on the host."""
        return [int(t) for t in self.tokens.tolist()]

    @cached_property
    def used(self) -> list[int]:
        """Indices of the nodes that exist, parents first."""
        return [i for i, p in enumerate(self.parent_list) if i == 0 or p >= 0]

    @cached_property
    def paths(self) -> list[list[int]]:
        """Drafted tokens on the way to each node, the anchor left out: one list a node."""
        paths: list[list[int]] = [[]]
        for i in range(1, len(self.parent_list)):
            parent = self.parent_list[i]
            paths.append([*paths[parent], self.token_list[i]] if parent >= 0 else [])
        return paths


class Constraint(ABC):
    """Changes the logits of one request, given its history and a drafted path."""

    @abstractmethod
    def apply(self, logits: Tensor, nodes: Nodes) -> None:
        """Write logits [N, V] in place: row i as it has to be after the path of node i. Keeps no trace of drafts."""

    def advance(self, tokens: list[int]) -> None:
        """These tokens were emitted."""

    @property
    def done(self) -> bool:
        """Whether nothing may follow what was emitted."""
        return False
