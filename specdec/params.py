"""What a user asks of one request: `SamplingParams`, validated field by field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from specdec.errors import OptionError, nearest

if TYPE_CHECKING:
    from torch import Tensor

#: Called with the tokens so far (prompt included) and float32 logits [V]; returns logits [V].
LogitsProcessor = Callable[[Sequence[int], "Tensor"], "Tensor"]
#: Called with the tokens so far (prompt included) after each new token; true ends the request.
StopCriterion = Callable[[Sequence[int]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The options of one request; each is honoured with every drafter, or refused by name.

    max_tokens            new tokens at most; 0 is allowed
    min_tokens            so many new tokens come before an EOS, a stop token, or the end of a stop string
    temperature           0 is greedy
    top_k, top_p, min_p   filters, applied in this order after temperature; 0 (or -1), 1 and 0 switch them off
    seed                  fixes the output at any temperature; None draws a new one for each request
    stop                  strings that end the text; the text leaves them out, `tokens` holds the token that
                          completed one
    stop_token_ids        tokens that end the request, beside the model's own EOS; `tokens` holds it
    ignore_eos            the model's own EOS does not end the request
    repetition_penalty    over prompt and output (Keskar et al. 2019); 1 is off
    presence_penalty, frequency_penalty   over the output; 0 is off
    logit_bias            token id to a number added to its logit
    bad_words             strings or token sequences that are never completed
    n                     completions of the prompt
    logprobs              number of best tokens reported beside each token; None is off
    regex, json_schema    the text matches it, through xgrammar; one of the two
    logits_processors     called once for each emitted token, in order, as plain decoding would
    stop_criteria         called once after each emitted token, in order, as plain decoding would
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str | Sequence[int]] = ()
    n: int = 1
    logprobs: int | None = None
    regex: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    stop_criteria: Sequence[StopCriterion] = ()

    def __post_init__(self) -> None:
        self._normalise()
        self._check_counts()
        self._check_numbers()
        self._check_lists()
        self._check_grammar()
        if self.regex is not None and self.json_schema is not None:
            raise OptionError("regex and json_schema were both given; one grammar can hold. Drop one of them.")

    def override(self, **changes: Any) -> SamplingParams:
        """A copy with `changes`; an unknown name is refused with the closest known one."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise OptionError(
                    f"sampling option {name!r} is not known (known: {', '.join(known)}).{nearest(name, known)}"
                )
        return replace(self, **changes)

    @property
    def penalised(self) -> bool:
        """Whether logits depend on what was generated before through a penalty."""
        off = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0.0, 0.0)
        return not off

    def _normalise(self) -> None:
        set_ = object.__setattr__
        set_(self, "stop", (self.stop,) if isinstance(self.stop, str) else self.stop)
        set_(self, "top_k", 0 if self.top_k == -1 else self.top_k)
        for name in ("stop", "stop_token_ids", "bad_words", "logits_processors", "stop_criteria"):
            value = getattr(self, name)
            if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
                raise OptionError(f"{name} is a list; found {value!r}. Put it in a list.")
            set_(self, name, tuple(value))

    def _check_counts(self) -> None:
        for name, least in (("max_tokens", 0), ("min_tokens", 0), ("top_k", 0), ("n", 1)):
            _whole(name, getattr(self, name), least)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0)
        if self.seed is not None:
            _whole("seed", self.seed, -(1 << 63))
            if self.seed >= 1 << 63:
                raise OptionError(f"seed must fit in 64 signed bits; found {self.seed}.")
        if self.min_tokens > self.max_tokens:
            raise OptionError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}. Raise max_tokens.")

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        _number("presence_penalty", self.presence_penalty, -math.inf, math.inf)
        _number("frequency_penalty", self.frequency_penalty, -math.inf, math.inf)

    def _check_lists(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise OptionError(f"stop holds non-empty strings; found {text!r}.")
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0)
        if not isinstance(self.logit_bias, Mapping):
            raise OptionError(f"logit_bias maps token ids to numbers; found {self.logit_bias!r}.")
        for token, bias in self.logit_bias.items():
            _whole("logit_bias key", token, 0)
            if not isinstance(bias, int | float) or isinstance(bias, bool) or not bias < math.inf:
                raise OptionError(f"logit_bias[{token}] must be a number below infinity; found {bias!r}.")
        for word in self.bad_words:
            if not isinstance(word, str | Sequence):
                raise OptionError(f"bad_words holds strings or token lists; found {word!r}.")
            if not word:
                raise OptionError(f"bad_words holds strings or token lists that are not empty; found {word!r}.")
            for token in () if isinstance(word, str) else word:
                _whole("bad_words token", token, 0)
        for name in ("logits_processors", "stop_criteria"):
            for call in getattr(self, name):
                if not callable(call):
                    raise OptionError(f"{name} holds callables; found {call!r}.")

    def _check_grammar(self) -> None:
        if not isinstance(self.ignore_eos, bool):
            raise OptionError(f"ignore_eos is True or False; found {self.ignore_eos!r}.")
        if not isinstance(self.regex, str | None):
            raise OptionError(f"regex is a string; found {self.regex!r}.")
        if not isinstance(self.json_schema, str | Mapping | None):
            raise OptionError(f"json_schema is a JSON text or a mapping; found {self.json_schema!r}.")


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}; found {value!r}.")


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if fits and low <= value <= high and not (open_low and value == low):
        return
    bracket = "(" if open_low else "["
    raise OptionError(f"{name} must be a finite number in {bracket}{low}, {high}]; found {value!r}.")
