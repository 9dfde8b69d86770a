"""The first role: the model whose distribution is the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specdec.state import Rows, StateIdentity
from specdec.types import Draft, Scores, Verdict

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """What others must know of a target.

    max_len: tokens a sequence may have, prompt and output together. max_budget: nodes one `score` takes a row.
    slots: sequences held at a time. taps: layers whose residual stream `Scores.hidden` holds.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_len: int
    slots: int
    max_budget: int = 64
    eos_ids: tuple[int, ...] = ()
    device: torch.device = _CPU
    dtype: torch.dtype = torch.float32
    taps: tuple[int, ...] = ()
    name: str = ""


class Target(ABC):
    """The model whose distribution is the answer. Owns its cache; nothing else writes it.

    Invariant between calls: rows cached for a slot == its length - 1, since the anchor is not cached yet.
    Rows at or past that are scratch, so dropping a draft costs nothing.
    """

    spec: TargetSpec

    @abstractmethod
    def open(self, slots: Tensor, prompts: Sequence[Tensor]) -> Scores:
        """Prefill: what follows each prompt's last token, as scores with N == 1.

        slots [B] int64; prompts: B tensors of int64, none empty. Writes the slots' caches whole: a slot left open
        by an earlier request starts afresh. `hidden` holds, if tapped, the last row only.
        """

    @abstractmethod
    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        """One forward of all nodes: what follows each node, given its path.

        lengths [B] int64 count the anchor. Writes scratch rows of the slots' caches. Unused nodes get some score.
        """

    @abstractmethod
    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """Keep the cache rows of the accepted path, in path order; the rest becomes scratch."""

    @abstractmethod
    def close(self, slots: Tensor) -> None:
        """Free the slots."""


@runtime_checkable
class Resumable(Protocol):
    """A target whose cached rows can be copied out of a slot and put into another, bit by bit.

    identity names what wrote the rows: rows of two identities are never mixed. A row is a function of the tokens up
    to it alone, at the position it was written at.
    """

    identity: StateIdentity

    def resume(self, slots: Tensor, prompts: Sequence[Tensor], cached: Sequence[int]) -> Scores:
        """As `Target.open`, with the rows of the first cached[b] tokens of prompt b in place already.

        0 <= cached[b] < tokens of prompt b. Writes the other rows.
        """

    def take_rows(self, slot: int, start: int, stop: int) -> Rows:
        """Copies of the slot's rows `start` to `stop`."""

    def put_rows(self, slot: int, start: int, rows: Rows) -> None:
        """Write rows, as `take_rows` gives them, from row `start` of the slot on."""
