"""Keep what the target itself would have drawn: the same tokens as plain decoding, at any temperature."""

from __future__ import annotations

from torch import Tensor

from specdec import tree
from specdec.sampling import Sampling
from specdec.types import Draft, Scores, Verdict
from specdec.verifier import Verifier, verdict_of


class Match(Verifier):
    """Samples the target at every node with noise keyed by position, and keeps a child equal to its parent's sample.

    The output depends on seed and target alone, whatever the drafter, budget or batch: drafter-invariant
    speculative decoding (Daliri, Musco, Suresh 2024, arXiv 2408.07978). Any tree; q is not read. A drafter that
    samples with the same noise (`ctx.sampling.pick`) keeps nearly the acceptance of `rejection`.
    """

    lossless = True

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """The deepest path of matches, then the target's sample after it."""
        drawn = sampling.pick(scores.logits, lengths[:, None] + draft.depth)
        kept = draft.tokens == drawn.gather(1, draft.parents.clamp(min=0))
        if not draft.linear:
            kept = kept & tree.first_among_siblings(draft.tokens, draft.parents)
        return verdict_of(draft, kept, drawn)
