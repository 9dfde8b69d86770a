"""Tensor-parallel ranks must draft and decide alike: rank 0's draft and verdict are everyone's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdec.drafter import Drafter, DrafterSpec
from specdec.sampling import Sampling
from specdec.target import Target
from specdec.text import TextCodec
from specdec.types import Context, Draft, Request, Scores, Verdict
from specdec.verifier import Verifier
from specdec_sglang import sgl


def group() -> Any:
    """The ranks that decode the same batch."""
    return sgl.get_parallel().tp_group


def salt() -> int:
    """A number drawn once for the server, equal on all ranks: the seed of requests without one."""
    ranks = group()
    drawn = random.SystemRandom().getrandbits(63)
    return int(ranks.broadcast_object(drawn, src=0)) if ranks.world_size > 1 else drawn


def _agreed(ranks: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Rank 0's integers on every rank, in one message; shapes are equal on all."""
    flat = torch.cat([t.flatten().to(torch.int64) for t in tensors])
    flat = ranks.broadcast(flat, src=0)
    parts = flat.split([t.numel() for t in tensors])
    return [part.view_as(t).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]


class AgreedDrafter(Drafter):
    """Proposes what rank 0's drafter proposes. Float differences between devices cannot split the ranks.

    A draft's width must not depend on values that ranks round differently, so it is padded to the budget.
    """

    def __init__(self, inner: Drafter, ranks: Any) -> None:
        self.inner, self._ranks = inner, ranks

    @classmethod
    def over(cls, inner: Drafter, ranks: Any) -> Drafter:
        """The drafter itself where there is one rank."""
        return inner if ranks.world_size == 1 else cls(inner, ranks)

    @property
    def spec(self) -> DrafterSpec:  # type: ignore[override]  # a view of the inner spec
        """The inner drafter's spec."""
        return self.inner.spec

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Pass on."""
        self.inner.attach(target, codec)

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Pass on."""
        self.inner.open(slots, requests, scores)

    def propose(self, ctx: Context) -> Draft:
        """Rank 0's draft, as a tree of point masses unless the rule reads q."""
        draft = self.inner.propose(ctx).padded(ctx.budget)
        tokens, parents = _agreed(self._ranks, [draft.tokens, draft.parents])
        q = draft.q if draft.q is None else self._ranks.broadcast(draft.q.contiguous(), src=0)
        return replace(draft, tokens=tokens, parents=parents, q=q)

    def while_verifying(self, ctx: Context, draft: Draft) -> None:
        """Pass on."""
        self.inner.while_verifying(ctx, draft)

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Pass on."""
        self.inner.commit(ctx, draft, verdict, scores)

    def close(self, slots: Tensor) -> None:
        """Pass on."""
        self.inner.close(slots)


class AgreedVerifier(Verifier):
    """Decides what rank 0's rule decides."""

    lossless = True  # the inner rule's own is shown below

    def __init__(self, inner: Verifier, ranks: Any) -> None:
        self.inner, self._ranks = inner, ranks
        self.lossless, self.needs_q, self.chains_only = inner.lossless, inner.needs_q, inner.chains_only  # type: ignore[misc]

    @classmethod
    def over(cls, inner: Verifier, ranks: Any) -> Verifier:
        """The rule itself where there is one rank."""
        return inner if ranks.world_size == 1 else cls(inner, ranks)

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """Rank 0's verdict."""
        verdict = self.inner.accept(draft, scores, sampling, lengths)
        return Verdict(*_agreed(self._ranks, [verdict.path, verdict.accepted, verdict.next_token]))
