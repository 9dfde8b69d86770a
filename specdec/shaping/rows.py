"""The constraints of one request, in the order plain decoding applies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specdec.errors import OptionError
from specdec.params import SamplingParams
from specdec.shaping.constraint import Constraint, Nodes
from specdec.shaping.grammar import GrammarSource
from specdec.shaping.masks import BadWords, LogitBias, MinTokens
from specdec.shaping.penalties import Penalties
from specdec.text import TextCodec


@dataclass(slots=True)
class RowShaper:
    """Penalties, bias, bad words, min_tokens, then a grammar; empty for most requests."""

    constraints: list[Constraint] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        prompt: Tensor,
        ids: Sequence[int],
        *,
        vocab_size: int,
        ends: Sequence[int],
        codec: TextCodec | None,
        grammars: GrammarSource,
    ) -> RowShaper:
        """The constraints that `params` ask for; ends: tokens that end the request."""
        _check_ids(params, vocab_size)
        made: list[Constraint] = []
        if params.penalised:
            made.append(Penalties(params, prompt, vocab_size))
        if params.logit_bias:
            made.append(LogitBias(params.logit_bias, prompt.device))
        if params.bad_words:
            made.append(BadWords(_as_tokens(params.bad_words, codec, vocab_size), ids))
        if params.min_tokens > 0:
            made.append(MinTokens(params.min_tokens, ends, prompt.device))
        if params.regex is not None or params.json_schema is not None:
            made.append(grammars.constraint(params))
        return cls(made)

    def apply(self, logits: Tensor, nodes: Nodes) -> None:
        """Write logits [N, V] in place."""
        for constraint in self.constraints:
            constraint.apply(logits, nodes)

    def advance(self, tokens: list[int]) -> None:
        """These tokens were emitted."""
        for constraint in self.constraints:
            constraint.advance(tokens)

    @property
    def done(self) -> bool:
        """Whether a constraint lets nothing follow."""
        return any(constraint.done for constraint in self.constraints)


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token in ids:
            if token >= vocab_size:
                raise OptionError(f"{name} names token {token}; the vocabulary has {vocab_size} tokens.")


def _as_tokens(words: Sequence[str | Sequence[int]], codec: TextCodec | None, vocab_size: int) -> list[list[int]]:
    """Token sequences of each word; a text is banned at the start of a word and inside one."""
    found: list[list[int]] = []
    for word in words:
        if isinstance(word, str):
            if codec is None:
                raise OptionError(
                    f"bad_words holds the text {word!r}; this engine has no tokenizer. "
                    "Give token lists, or a tokenizer to the engine."
                )
            spellings = [codec.encode(prefix + word, special=False) for prefix in ("", " ")]
            found += [s for i, s in enumerate(spellings) if s and s not in spellings[:i]]
        else:
            ids = [int(token) for token in word]
            if any(not 0 <= token < vocab_size for token in ids):
                raise OptionError(f"bad_words holds {ids}; the vocabulary has {vocab_size} tokens.")
            found.append(ids)
    return found
