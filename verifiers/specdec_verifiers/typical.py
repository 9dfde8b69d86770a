"""Keep what is typical enough: longer runs, another distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.errors import OptionError
from specdec.sampling import Sampling
from specdec.types import Draft, Scores, Verdict
from specdec.verifier import Verifier, verdict_of


class Typical(Verifier):
    """Keeps x where p(x) >= min(epsilon, delta * exp(-H(p))); LOSSY: the output is not the target's.

    Typical acceptance (Cai et al. 2024, arXiv 2401.10774). H is the entropy of p in nats. Rows at temperature 0 keep
    argmaxes only and so stay exact.
    """

    lossless = False

    def __init__(self, epsilon: float = 0.3, delta: float = 0.09) -> None:
        if not 0 < epsilon <= 1 or not delta > 0:
            raise OptionError(
                f"typical needs 0 < epsilon <= 1 and delta > 0; found epsilon={epsilon!r}, delta={delta!r}."
            )
        self.epsilon, self.delta = epsilon, delta

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """The deepest typical path, then the target's sample after it."""
        p = sampling.distribution(scores.logits)
        entropy = -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(-1)
        bar = torch.clamp(self.delta * torch.exp(-entropy), max=self.epsilon)
        parent = draft.parents.clamp(min=0)
        rows = torch.arange(p.shape[0], device=p.device)[:, None]
        kept = p[rows, parent, draft.tokens] >= bar.gather(1, parent)
        drawn = sampling.pick(scores.logits, lengths[:, None] + draft.depth)
        return verdict_of(draft, kept, drawn)
