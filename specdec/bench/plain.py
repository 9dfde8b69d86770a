"""Finding transformers' fastest plain run: a speed-up over a slow baseline would be none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from specdec.bench.runners import TRANSFORMERS, TransformersRunner
from specdec.hf import load as loading

_TOKENS = 16
_PROMPTS = 2
_WAYS = ("sdpa", "eager")


def load_plain(model: str, dtype: str | None, device: str) -> Any:
    """The transformers model itself, with weights of its own."""
    built, _ = loading.load_model(loading.resolve(model), loading.dtype_of(dtype), torch.device(device))
    built.generation_config.max_length = None  # the length is given with every call
    return built


def fastest(
    load: Callable[[str], Any], dtypes: Sequence[str], prompts: Sequence[Sequence[int]]
) -> tuple[TransformersRunner, dict[str, float], dict[str, Any]]:
    """The quickest plain runner, the tokens per second of every kind that was tried, and the models by dtype.

    Each dtype is tried with both of transformers' attention functions, on a few prompts and few tokens.
    """
    models = {dtype: load(dtype) for dtype in dict.fromkeys(dtypes)}
    rates: dict[str, float] = {}
    for dtype, model in models.items():
        for way in _WAYS:
            model.set_attn_implementation(way)
            rates[f"{dtype} {way}"] = _rate(TransformersRunner(TRANSFORMERS, model), prompts)
    best = max(rates, key=lambda kind: rates[kind])
    for dtype, model in models.items():
        ways = {rates[f"{dtype} {way}"]: way for way in _WAYS}
        model.set_attn_implementation(ways[max(ways)])
    return TransformersRunner(TRANSFORMERS, models[best.split()[0]]), rates, models


def _rate(runner: TransformersRunner, prompts: Sequence[Sequence[int]]) -> float:
    runner.run(prompts[0], 2, 0.0, 0)
    runs = [runner.run(ids, _TOKENS, 0.0, 0) for ids in _chosen(prompts)]
    return sum(len(run.tokens) for run in runs) / sum(run.seconds for run in runs)


def _chosen(prompts: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """A few prompts of middling length."""
    ranked = sorted(prompts, key=len)
    middle = max(0, len(ranked) // 2 - _PROMPTS // 2)
    yield from ranked[middle : middle + _PROMPTS]
