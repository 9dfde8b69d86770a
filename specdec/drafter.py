"""The second role: whatever guesses what the target will say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specdec.target import Target
from specdec.text import TextCodec
from specdec.types import Context, Draft, Request, Scores, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec:
    """What an engine must know of a drafter.

    window      W: tokens of the tail it reads
    max_budget  nodes it can fill, the anchor included; None is any number
    taps        layers of the target whose hidden states it reads
    max_lag     tokens its state may trail the anchor by; None is any number
    trees       it may return more than chains
    """

    window: int = 1
    max_budget: int | None = None
    taps: tuple[int, ...] = ()
    max_lag: int | None = None
    trees: bool = False


class Drafter(ABC):
    """Guesses what the target will say. Being wrong costs time, never correctness.

    State is kept by slot and gathered by `ctx.slots`. `propose` reads state and writes none, so it may be called
    for futures that never come; `commit` writes.
    """

    spec: DrafterSpec = DrafterSpec()

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Called once, before any other method: the time to size state and to refuse what cannot work."""

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Requests begin in `slots` [B]; prompts are int64 tensors; `scores` follow their last tokens."""

    @abstractmethod
    def propose(self, ctx: Context) -> Draft:
        """At most `ctx.budget` nodes for each row, fewer if it knows no more. Writes nothing."""

    def while_verifying(self, ctx: Context, draft: Draft) -> None:
        """Work beside the verification of `draft`; its outcome is not known yet."""

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Learn what was kept. `ctx` is the context the draft was proposed in."""

    def close(self, slots: Tensor) -> None:
        """The requests in `slots` [B] ended; forget them."""


class NoDraft(Drafter):
    """Proposes nothing: a round is then one step of plain decoding."""

    spec = DrafterSpec(max_budget=1, max_lag=None)

    def propose(self, ctx: Context) -> Draft:
        """The anchor alone."""
        return Draft.empty(ctx.anchor)
