"""The third role: the rule that says which draft tokens are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from specdec import tree
from specdec.params import SamplingParams
from specdec.sampling import Sampling
from specdec.types import Draft, Scores, Verdict


class Verifier(ABC):
    """A pure rule: draft and logits in, verdict out. No state, no host sync, no in-place writes.

    lossless: the emitted tokens are distributed as plain sampling of the target would. needs_q: reads `Draft.q`.
    chains_only: drafts with more than one child a node are refused before the first round.
    """

    lossless: ClassVar[bool]
    needs_q: ClassVar[bool] = False
    chains_only: ClassVar[bool] = False

    def refusal(self, params: SamplingParams) -> str | None:
        """Why this rule cannot serve a request with `params`, or None."""
        return None

    @abstractmethod
    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """The path that is kept and the token after it.

        scores.logits [B, N, V] already hold penalties, biases and masks; lengths [B] count the anchor, so the
        token after node i has position lengths + depth[i].
        """


def verdict_of(draft: Draft, kept: Tensor, following: Tensor) -> Verdict:
    """The verdict that keeps the deepest path of kept [B, N] nodes; following [B, N] is the token after each."""
    root = torch.arange(draft.nodes, device=kept.device) == 0
    kept = (kept & draft.used) | root
    node = tree.deepest(kept, draft.ancestors, torch.where(draft.used, draft.depth, -1))
    accepted = draft.depth.gather(1, node[:, None])[:, 0]
    return Verdict(tree.path_to(node, draft.ancestors), accepted, following.gather(1, node[:, None])[:, 0])
