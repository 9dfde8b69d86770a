"""What the sessions of one engine share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from specdec.drafter import Drafter
from specdec.engine.budget import BudgetPolicy
from specdec.engine.gate import Gate
from specdec.engine.judge import Judge
from specdec.engine.keeper import StateKeeper
from specdec.engine.slots import SlotPool
from specdec.errors import CapacityError, CompositionError, OptionError
from specdec.lanes import Serial
from specdec.params import SamplingParams
from specdec.shaping.grammar import GrammarSource
from specdec.target import Target
from specdec.text import TextCodec
from specdec.verifier import Verifier


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Target, drafter and rule, and what surrounds them. budget: nodes a draft may have, the anchor included.

    judge: makes what stands between drafter and policy in a session. gate: keeps gap work and requests apart. keeper:
    what keeps state of prompts, or None.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    codec: TextCodec | None
    grammars: GrammarSource
    slots: SlotPool
    policy: BudgetPolicy
    judge: Callable[[], Judge]
    budget: int
    lanes: Serial
    names: tuple[str, str]
    gate: Gate = field(default_factory=Gate)
    keeper: StateKeeper | None = None

    def check_pair(self) -> None:
        """Raises CompositionError if rule and drafter cannot work together."""
        drafter, verifier = self.names
        if self.verifier.chains_only and self.drafter.spec.trees:
            raise CompositionError(
                f"verifier {verifier!r} decides chains only; drafter {drafter!r} proposes trees. "
                "Use 'tree_rejection' or 'match'."
            )
        missing = [tap for tap in self.drafter.spec.taps if tap not in self.target.spec.taps]
        if missing:
            raise CompositionError(
                f"drafter {drafter!r} reads hidden states of layers {self.drafter.spec.taps}; the target taps "
                f"{self.target.spec.taps}. Load the target with taps={self.drafter.spec.taps}."
            )

    def check_request(self, params: SamplingParams, prompt_tokens: int) -> None:
        """Raises for what cannot be served, by name and number."""
        max_len = self.target.spec.max_len
        if prompt_tokens == 0:
            raise OptionError("the prompt is empty; decoding needs at least one token. Give a BOS token or text.")
        if prompt_tokens > max_len:
            raise CapacityError(
                f"the prompt has {prompt_tokens} tokens; the target holds {max_len} positions. "
                "Shorten it or load the target with a larger max_len."
            )
        if params.stop and self.codec is None:
            raise OptionError(
                f"stop strings {list(params.stop)!r} were given; this engine has no tokenizer. "
                "Use stop_token_ids, or give a tokenizer to the engine."
            )
        if refusal := self.verifier.refusal(params):
            raise OptionError(f"verifier {self.names[1]!r} cannot serve this request: {refusal}")
