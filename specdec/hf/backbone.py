"""What computes a target's forward: the protocol, and the masks both backbones read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdec.attention import additive, visible
from specdec.kvcache import KVCache, Place


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward of N nodes a row.

    tokens, positions, depth [B, N] int64; ancestors [B, N, N] bool; place says where keys and values go.
    last [B] int64: the one node of each row that is scored, or None for all. causal: known on the host, the rows are
    chains from position 0 on, so a node sees what stands before it and nothing else.
    """

    tokens: Tensor
    positions: Tensor
    place: Place
    ancestors: Tensor
    depth: Tensor
    last: Tensor | None = None
    causal: bool = False


class Backbone(Protocol):
    """The layers of one model over slabs of keys and values."""

    name: str

    def __call__(self, step: Step, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        """Logits [B, N, V] in the model's dtype, and the tapped hidden states [B, N, H * taps] or None.

        With `last`, both have N == 1. Writes the rows of `step.place`.
        """


def biases(step: Step, windows: Iterable[int | None], dtype: torch.dtype) -> dict[int | None, Tensor | None]:
    """The additive mask [B, 1, N, span] of each sliding window (None is full attention), computed once a forward.

    None stands for a mask that hides nothing, so that attention need not read one.
    """
    return {window: _bias(step, window, dtype) for window in set(windows)}


def pick(x: Tensor, last: Tensor | None) -> Tensor:
    """Row `last` [B] of x [B, N, H] as [B, 1, H]; all rows where it is None."""
    if last is None:
        return x
    return x.gather(1, last[:, None, None].expand(-1, 1, x.shape[-1]))


def _bias(step: Step, window: int | None, dtype: torch.dtype) -> Tensor | None:
    place = step.place
    alone = place.nodes == 1 and place.offset is not None  # then every row read lies before the node
    if alone and (window is None or place.span <= window):
        return None
    return additive(visible(place, step.ancestors, step.depth, window), dtype)
