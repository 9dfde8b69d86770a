"""Keep what the target's argmax says."""

from __future__ import annotations

from torch import Tensor

from specdec.params import SamplingParams
from specdec.sampling import Sampling
from specdec.types import Draft, Scores, Verdict
from specdec.verifier import Verifier, verdict_of


class Greedy(Verifier):
    """Keeps a child that equals the argmax after its parent; for requests at temperature 0 only."""

    lossless = True

    def refusal(self, params: SamplingParams) -> str | None:
        """Temperatures above 0 are refused: this rule never draws."""
        if params.temperature > 0:
            return f"it decides by argmax, and temperature {params.temperature} was asked. Use 'match'."
        return None

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """The deepest path of argmaxes, then the argmax after it."""
        best = scores.logits.argmax(-1)
        return verdict_of(draft, draft.tokens == best.gather(1, draft.parents.clamp(min=0)), best)
