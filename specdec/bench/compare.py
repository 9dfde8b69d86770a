"""Where two outputs part, and how close the model's choice was there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specdec import noise
from specdec.target import Target

#: Differences of two logits that rounding explains, by dtype: kernels of different widths round differently.
GAPS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 1.0}


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first new token that differs. gap: by how much the baseline's choice beat the other one, in logits.

    At a temperature above 0 the gap is that of the race the draw is: logit plus temperature times noise. It is None
    where one output ends and the other goes on. tie: the gap is one that rounding explains.
    """

    position: int
    gap: float | None
    tie: bool

    def as_dict(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which the outputs differ, or None if they are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def divergence(
    target: Target,
    prompt: Sequence[int],
    base: Sequence[int],
    other: Sequence[int],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    bound: float | None = None,
) -> Divergence | None:
    """Where `other` leaves `base`, or None. Runs the prompt through slot 0, which no request may hold.

    bound: the gap that rounding explains; that of the target's dtype if None.
    """
    at = first_difference(base, other)
    if at is None:
        return None
    if at >= len(base) or at >= len(other):
        return Divergence(at, None, tie=False)
    slot = torch.zeros(1, dtype=torch.int64, device=target.spec.device)
    ids = torch.tensor([*prompt, *base[:at]], dtype=torch.int64, device=target.spec.device)
    logits = target.open(slot, [ids]).logits[0, 0]
    target.close(slot)
    if temperature > 0:
        every = torch.arange(logits.shape[-1], device=logits.device)
        key = torch.tensor([seed], device=logits.device), torch.tensor([len(ids)], device=logits.device)
        logits = logits + temperature * noise.gumbel(*key, every)[0]
    gap = abs(float(logits[base[at]] - logits[other[at]]))
    limit = GAPS.get(target.spec.dtype, GAPS[torch.float32]) if bound is None else bound
    return Divergence(at, gap, tie=gap <= limit)
