"""Speculative sampling of trees: siblings are tried one by one, each against what the earlier ones left."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec import noise
from specdec.sampling import Sampling
from specdec.types import Draft, Scores, Verdict
from specdec.verifier import Verifier, verdict_of
from specdec_verifiers.rejection import draw


class TreeRejection(Verifier):
    """Keeps child x with probability min(1, r(x) / q(x)), where r is p less the q of each sibling refused before.

    Multi-step speculative sampling (Miao et al. 2024, arXiv 2305.09781). q[:, i] is what node i was drawn from given
    its earlier siblings, so draws with and without replacement are both exact; without q a node is a point mass.
    On chains it gives the tokens of `rejection`.
    """

    lossless = True
    needs_q = True

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """Walks the nodes in order, since parents come first; one pass, no host sync."""
        p = sampling.distribution(scores.logits)
        at = torch.zeros_like(lengths)
        left = p[:, 0]
        kept = torch.zeros_like(draft.used)
        rows = torch.arange(p.shape[0], device=p.device)
        index = torch.arange(draft.nodes, device=p.device)
        for i in range(1, draft.nodes):
            x = draft.tokens[:, i]
            child = draft.used[:, i] & (draft.parents[:, i] == at)
            q = draft.q[:, i] if draft.q is not None else torch.zeros_like(left).scatter_(1, x[:, None], 1.0)
            position = lengths + draft.depth[:, i] - 1
            u = noise.uniform(sampling.seed, position, index[i : i + 1], noise.COIN)[:, 0]
            share = left[rows, x]
            passed = child & (u * q[rows, x] <= share) & (share > 0)
            kept[:, i] = passed
            at = torch.where(passed, i, at)
            excess = (left - q).clamp(min=0)
            mass = excess.sum(-1, keepdim=True)
            refused = torch.where(mass > 0, excess / mass, left)  # rounding may leave no mass
            left = torch.where(passed[:, None], p[:, i], torch.where(child[:, None], refused, left))
        prefix = verdict_of(draft, kept, draft.tokens)
        return Verdict(prefix.path, prefix.accepted, draw(left, sampling, lengths + prefix.accepted))
