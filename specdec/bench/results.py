"""Samples by prompt, drafter and temperature: medians, loops, and what differs from plain decoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from statistics import median

from specdec.bench.compare import Divergence
from specdec.bench.loops import loops
from specdec.bench.store import Sample

#: Given prompt, baseline's tokens, other tokens, temperature and drafter: where they part.
Compare = Callable[[str, Sequence[int], Sequence[int], float, str], Divergence | None]
BASE = "none"


class Results:
    """What was measured, at one temperature. compare: see `Compare`."""

    def __init__(self, samples: Iterable[Sample], temperature: float, compare: Compare) -> None:
        self.temperature, self._compare = temperature, compare
        self._samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        for sample in samples:
            if sample.temperature == temperature:
                self._samples[sample.drafter, sample.prompt].append(sample)

    def of(self, drafter: str, prompts: Iterable[str]) -> list[list[Sample]]:
        """The repeats of each prompt."""
        return [self._samples[drafter, prompt] for prompt in prompts]

    def rate(self, drafter: str, prompts: Sequence[str]) -> float | None:
        """Tokens per second over the prompts, each with the median of its repeats; None without a prompt."""
        tokens, seconds = 0.0, 0.0
        for repeats in self.of(drafter, prompts):
            written = median(len(sample.tokens) for sample in repeats)
            tokens += written
            seconds += written / median(len(sample.tokens) / sample.seconds for sample in repeats) if written else 0.0
        return tokens / seconds if seconds else None

    def ratio(self, drafter: str, other: str, prompts: Sequence[str]) -> float | None:
        """How many times faster `drafter` was than `other` on the same prompts."""
        mine, theirs = self.rate(drafter, prompts), self.rate(other, prompts)
        return mine / theirs if mine and theirs else None

    def spread(self, drafter: str, other: str, prompts: Sequence[str]) -> list[float]:
        """That ratio prompt by prompt, sorted."""
        ratios = (self.ratio(drafter, other, [prompt]) for prompt in prompts)
        return sorted(ratio for ratio in ratios if ratio is not None)

    def total(self, drafter: str, prompts: Sequence[str], count: str) -> float | None:
        """The sum of one of the engine's counts over prompts and repeats; None where there are none."""
        values = [sample.counts.get(count) for repeats in self.of(drafter, prompts) for sample in repeats]
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    def looping(self, prompt: str) -> bool:
        """Whether any output repeats itself; then the prompt counts for nobody, so that all rows have the same ones."""
        return prompt in self._looping

    def differences(self, drafter: str, prompts: Iterable[str]) -> dict[str, Divergence]:
        """Where this drafter's outputs leave those of plain decoding, by prompt; the least explained of the repeats."""
        found = {}
        for prompt in prompts:
            if parted := self._difference(drafter, prompt):
                found[prompt] = parted
        return found

    @cached_property
    def _looping(self) -> set[str]:
        outputs = ((prompt, repeats[0].tokens) for (_, prompt), repeats in self._samples.items() if repeats)
        return {prompt for prompt, tokens in outputs if loops(tokens)}

    @cached_property
    def _known(self) -> dict[tuple[str, str], Divergence | None]:
        return {}

    def _difference(self, drafter: str, prompt: str) -> Divergence | None:
        key = drafter, prompt
        if key not in self._known:
            base = self._samples[BASE, prompt][0].tokens
            outputs = {tuple(sample.tokens) for sample in self._samples[key]}
            parted = [self._compare(prompt, base, list(out), self.temperature, drafter) for out in sorted(outputs)]
            real = [item for item in parted if item is not None]
            self._known[key] = min(real, key=_explained, default=None)
        return self._known[key]


def _explained(item: Divergence) -> tuple[bool, float]:
    """Sorts unexplained divergences first, then those with wide gaps."""
    return item.tie, -(float("inf") if item.gap is None else item.gap)
