"""What is measured: the engine with a drafter, or transformers' own generate, behind one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch

from specdec.engine import Engine

TRANSFORMERS = "transformers"
#: transformers' own counterpart of a drafter.
COUNTERPARTS = {"ngram": "transformers:prompt_lookup", "draft_model": "transformers:assisted"}
_LOOKUP_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One whole generation: new tokens, seconds from prompt to last token, and the engine's counts if it has any."""

    tokens: list[int]
    seconds: float
    counts: Mapping[str, float]


class Runner(Protocol):
    """Something that continues a prompt.

    lossless: its text is distributed as that of plain decoding. repeatable: above temperature 0 too its tokens are
    those of plain decoding with the same seed.
    """

    name: str
    lossless: bool
    repeatable: bool

    def run(self, ids: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Run:
        """Continue `ids`, timed whole."""


class EngineRunner:
    """An engine with one of its drafters."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine, self.lossless = name, engine, engine.lossless
        self.repeatable = not engine.verifier.needs_q  # a rule that reads q draws again where a draft was refused

    def run(self, ids: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Run:
        """See `Runner`."""
        start = perf_counter()
        [done] = self.engine.generate([list(ids)], max_tokens=max_tokens, temperature=temperature, seed=seed)
        seconds = perf_counter() - start
        names = ("rounds", "emitted", "drafted", "accepted", "prefill_ms", "draft_ms", "verify_ms")
        return Run(done.tokens, seconds, {name: getattr(done.stats, name) for name in names})


class TransformersRunner:
    """A transformers model's generate; `extra` are keywords that choose its way of decoding."""

    lossless, repeatable = True, False

    def __init__(self, name: str, model: Any, extra: Mapping[str, Any] | None = None) -> None:
        self.name, self.model, self.extra = name, model, dict(extra or {})

    def run(self, ids: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Run:
        """See `Runner`. Its random numbers are torch's: a seed gives other tokens than the engine's."""
        options: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            torch.manual_seed(seed)
            options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        prompt = torch.tensor([list(ids)], device=self.model.device)
        ends = self.model.generation_config.eos_token_id
        pad = ends[0] if isinstance(ends, list) else ends
        start = perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                pad_token_id=0 if pad is None else pad,
                **options,
                **self.extra,
            )
        tokens = out[0, prompt.shape[1] :].tolist()
        return Run(tokens, perf_counter() - start, {})


def lookup(model: Any) -> TransformersRunner:
    """Transformers' prompt look-up: the counterpart of `ngram`."""
    return TransformersRunner(COUNTERPARTS["ngram"], model, {"prompt_lookup_num_tokens": _LOOKUP_TOKENS})


def assisted(model: Any, assistant: Any) -> TransformersRunner:
    """Transformers' assisted generation: the counterpart of `draft_model`."""
    return TransformersRunner(COUNTERPARTS["draft_model"], model, {"assistant_model": assistant})
