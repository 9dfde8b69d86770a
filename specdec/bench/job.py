"""A benchmark put together: the model loaded, drafters and transformers' own decoding as runners, prompts encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specdec import registry
from specdec.bench import plain
from specdec.bench.chat import encode
from specdec.bench.compare import GAPS, Divergence, divergence
from specdec.bench.prompts import Prompt
from specdec.bench.results import BASE
from specdec.bench.runners import TRANSFORMERS, EngineRunner, Runner, TransformersRunner, assisted, lookup
from specdec.bench.threads import settle
from specdec.engine import Engine
from specdec.errors import OptionError
from specdec.target import Target

Progress = Callable[[str, float], None]
Options = Mapping[str, Mapping[str, Any]]
_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is compared.

    drafters: "none" is added where it is missing. against: "transformers" or None. threads: of torch; None leaves its
    default, 0 takes the quicker of that and one by a short trial.
    """

    model: str
    drafters: Sequence[str]
    verifier: str = "match"
    dtype: str | None = None
    device: str = "cpu"
    budget: int | None = None
    policy: str = "cost"
    against: str | None = None
    chat: bool | None = None
    draft_model: str | None = None
    threads: int | None = None
    drafter_options: Options = field(default_factory=dict)
    verifier_options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.against not in (None, TRANSFORMERS):
            raise OptionError(f"against {self.against!r} was asked for; only {TRANSFORMERS!r} is known.")
        named = {part for drafter in self.drafters for part in drafter.split(":")}
        if stray := sorted(set(self.drafter_options) - named):
            raise OptionError(f"options were given for {stray[0]!r}, which no drafter of {list(self.drafters)} names.")
        if "draft_model" in named and not (self.draft_model or "draft_model" in self.drafter_options):
            raise OptionError("drafter 'draft_model' needs a smaller model. Name one with --draft-model.")

    @property
    def every_drafter(self) -> list[str]:
        """The drafters, plain decoding first."""
        return list(dict.fromkeys([BASE, *self.drafters]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What `Setup` became. ids: prompt tokens by id; categories: prompt ids by name; skipped: prompts with no room."""

    target: Target
    runners: list[Runner]
    ids: dict[str, list[int]]
    categories: dict[str, list[str]]
    skipped: list[str]
    plain_rates: dict[str, float]
    gap: float

    def compare(self, seed: int) -> Callable[[str, Sequence[int], Sequence[int], float, str], Divergence | None]:
        """How outputs are compared with plain decoding's; see `results.Compare`."""
        own = GAPS.get(self.target.spec.dtype, GAPS[torch.float32])

        def parted(
            prompt: str, base: Sequence[int], other: Sequence[int], temperature: float, drafter: str
        ) -> Divergence | None:
            bound = self.gap if drafter.startswith(TRANSFORMERS) else own
            return divergence(
                self.target, self.ids[prompt], base, other, temperature=temperature, seed=seed, bound=bound
            )

        return parted


def assemble(setup: Setup, prompts: Sequence[Prompt], *, max_tokens: int, progress: Progress | None = None) -> Job:
    """Load everything once; prompts that leave no room for `max_tokens` are skipped and named."""
    report = progress or (lambda stage, share: None)
    for drafter in setup.every_drafter:  # a name that is not known is refused before a model is loaded
        for part in drafter.split(":"):
            registry.load(registry.DRAFTERS, part)
    target = _load_target(setup, progress)
    encoded = {prompt.id: encode(target.tokenizer, prompt.text, chat=setup.chat) for prompt in prompts}
    ids = {name: found for name, found in encoded.items() if len(found) + max_tokens <= target.spec.max_len}
    if not ids:
        raise OptionError(f"no prompt fits: {target.spec.max_len} positions, {max_tokens} of them for new tokens.")
    _set_threads(setup, target, next(iter(ids.values())))
    categories: dict[str, list[str]] = {}
    for prompt in prompts:
        if prompt.id in ids:
            categories.setdefault(prompt.category, []).append(prompt.id)
    runners: list[Runner] = [EngineRunner(name, _engine(setup, target, name)) for name in setup.every_drafter]
    rates: dict[str, float] = {}
    gap = GAPS.get(target.spec.dtype, GAPS[torch.float32])
    if setup.against:
        more, rates = _transformers(setup, target, list(ids.values()), report)
        runners += more
        gap = max([gap, *(GAPS.get(runner.model.dtype, 0.0) for runner in more)])
    skipped = [name for name in encoded if name not in ids]
    return Job(
        target=target, runners=runners, ids=ids, categories=categories, skipped=skipped, plain_rates=rates, gap=gap
    )


def _load_target(setup: Setup, progress: Progress | None) -> Any:
    load = registry.load(registry.TARGETS, "hf").load
    return load(setup.model, dtype=setup.dtype, device=setup.device, slots=1, progress=progress)


def _set_threads(setup: Setup, target: Target, ids: Sequence[int]) -> None:
    """Before any step is timed."""
    if setup.threads:
        torch.set_num_threads(setup.threads)
    elif setup.threads == 0:
        settle(EngineRunner(BASE, Engine(target)), ids)


def _engine(setup: Setup, target: Target, drafter: str) -> Engine:
    parts = drafter.split(":")
    options = {name: dict(values) for name, values in setup.drafter_options.items() if name in parts}
    if "draft_model" in parts and setup.draft_model:
        own = _DTYPES.get(target.spec.dtype)
        options["draft_model"] = {"model": setup.draft_model, "dtype": own} | options.get("draft_model", {})
    common: dict[str, Any] = {"budget": setup.budget, "policy": setup.policy, "drafter_options": options}
    if drafter == BASE:  # plain decoding is the target's own, whatever rule is measured
        return Engine(target, drafter, **common)
    return Engine(target, drafter, setup.verifier, verifier_options=setup.verifier_options, **common)


def _transformers(
    setup: Setup, target: Target, prompts: Sequence[Sequence[int]], report: Progress
) -> tuple[list[TransformersRunner], dict[str, float]]:
    """Transformers' fastest plain run, and its counterparts of the drafters in the dtype of the engine."""
    own = _DTYPES.get(target.spec.dtype, "fp32")

    def load(dtype: str) -> Any:
        report(f"transformers in {dtype}", 0.0)
        return plain.load_plain(setup.model, dtype, setup.device)

    runner, rates, models = plain.fastest(load, [own, "fp32"], prompts)
    found = [runner]
    bases = {drafter.split(":")[-1] for drafter in setup.drafters}
    if "ngram" in bases:
        found.append(lookup(models[own]))
    if "draft_model" in bases and setup.draft_model:
        found.append(assisted(models[own], plain.load_plain(setup.draft_model, own, setup.device)))
    return found, rates
