"""Speculative sampling of chains: the target's distribution at the highest acceptance a chain can have."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec import noise
from specdec.sampling import Sampling
from specdec.types import Draft, Scores, Verdict
from specdec.verifier import Verifier, verdict_of


class Rejection(Verifier):
    """Keeps token x with probability min(1, p(x) / q(x)), else draws from max(p - q, 0).

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). p is the target after temperature
    and filters. Without q a token counts as a point mass, which is exact for chosen tokens. Chains only.
    """

    lossless = True
    needs_q = True
    chains_only = True

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """The longest kept prefix, then a draw from the residual, or from p after a whole chain."""
        p = sampling.distribution(scores.logits)
        q = draft.q if draft.q is not None else torch.zeros_like(p).scatter_(-1, draft.tokens[..., None], 1.0)
        kept = self._coins(draft, p, q, sampling, lengths)
        prefix = verdict_of(draft, kept, draft.tokens)
        left = residual(p, q, draft, prefix)
        drawn = draw(left, sampling, lengths + prefix.accepted)
        return Verdict(prefix.path, prefix.accepted, drawn)

    def _coins(self, draft: Draft, p: Tensor, q: Tensor, sampling: Sampling, lengths: Tensor) -> Tensor:
        """Which nodes pass their own test: [B, N] bool."""
        index = torch.arange(draft.nodes, device=p.device)
        x = draft.tokens[:, 1:, None]
        before = p[:, :-1].gather(-1, x)[..., 0]
        drawn_from = q[:, 1:].gather(-1, x)[..., 0]
        u = noise.uniform(sampling.seed[:, None], lengths[:, None] + index[:-1], index[1:, None], noise.COIN)[..., 0]
        passed = (u * drawn_from <= before) & (before > 0)
        return torch.nn.functional.pad(passed, (1, 0), value=True)


def residual(p: Tensor, q: Tensor, draft: Draft, prefix: Verdict) -> Tensor:
    """What the token after the kept prefix is drawn from, not normalised: [B, V].

    max(p - q, 0) where the next token was rejected; p where there was none left, or where rounding left no mass.
    """
    last = prefix.accepted[:, None]
    after = (last + 1).clamp(max=draft.nodes - 1)
    rejected = (last + 1 < draft.nodes) & draft.used.gather(1, after)
    width = (-1, -1, p.shape[-1])
    p_last = p.gather(1, last[..., None].expand(width))[:, 0]
    q_next = q.gather(1, after[..., None].expand(width))[:, 0]
    excess = (p_last - q_next).clamp(min=0)
    return torch.where(rejected & (excess.sum(-1, keepdim=True) > 0), excess, p_last)


def draw(weights: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    """One token from weights [B, V] by keyed noise: [B] int64. positions [B]."""
    ids = torch.arange(weights.shape[-1], device=weights.device)
    race = weights.log() + noise.gumbel(sampling.seed, positions, ids, noise.RESIDUAL)
    return race.argmax(-1)
