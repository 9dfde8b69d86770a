"""Check mode: parts wrapped so that a broken contract is reported where it breaks, by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from specdec.drafter import Drafter, DrafterSpec
from specdec.errors import ContractError
from specdec.params import SamplingParams
from specdec.sampling import Sampling
from specdec.target import Target
from specdec.text import TextCodec
from specdec.types import Context, Draft, Request, Scores, Verdict
from specdec.verifier import Verifier


def checked_drafter(drafter: Drafter, vocab_size: int) -> Drafter:
    """The drafter, with each draft checked for shapes, types, order, budget and q."""
    return drafter if isinstance(drafter, CheckedDrafter) else CheckedDrafter(drafter, vocab_size)


def checked_target(target: Target) -> Target:
    """The target, with shapes, types and scratch rules checked."""
    return target if isinstance(target, CheckedTarget) else CheckedTarget(target)


def checked_verifier(verifier: Verifier) -> Verifier:
    """The rule, with each verdict checked to be a path of the draft."""
    return verifier if isinstance(verifier, CheckedVerifier) else CheckedVerifier(verifier)


class CheckedDrafter(Drafter):
    """Passes calls on and checks what `propose` returns; a second call with the same context must agree."""

    def __init__(self, inner: Drafter, vocab_size: int) -> None:
        self.inner, self._vocab, self._who = inner, vocab_size, type(inner).__name__

    @property
    def spec(self) -> DrafterSpec:  # type: ignore[override]  # a view of the inner spec, which attach may change
        """The inner drafter's spec."""
        return self.inner.spec

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Pass on."""
        self.inner.attach(target, codec)

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Pass on."""
        self.inner.open(slots, requests, scores)

    def propose(self, ctx: Context) -> Draft:
        """A checked draft."""
        draft = self.inner.propose(ctx)
        check_draft(draft, ctx, f"{self._who}.propose", self._vocab)
        if not _same(draft, self.inner.propose(ctx)):
            raise ContractError(
                f"{self._who}.propose gave two drafts for one context; it may write no state. Move writes to commit."
            )
        return draft

    def while_verifying(self, ctx: Context, draft: Draft) -> None:
        """Pass on."""
        self.inner.while_verifying(ctx, draft)

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Pass on."""
        self.inner.commit(ctx, draft, verdict, scores)

    def close(self, slots: Tensor) -> None:
        """Pass on."""
        self.inner.close(slots)


class CheckedTarget(Target):
    """Passes calls on and checks scores."""

    def __init__(self, inner: Target) -> None:
        self.inner, self.spec, self._who = inner, inner.spec, type(inner).__name__
        self.tokenizer = getattr(inner, "tokenizer", None)

    def open(self, slots: Tensor, prompts: Sequence[Tensor]) -> Scores:
        """Checked scores."""
        scores = self.inner.open(slots, prompts)
        self._check(scores, (len(prompts), 1, self.spec.vocab_size), "open")
        return scores

    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        """Checked scores."""
        scores = self.inner.score(slots, lengths, draft)
        self._check(scores, (*draft.tokens.shape, self.spec.vocab_size), "score")
        return scores

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """Pass on."""
        self.inner.commit(slots, lengths, draft, verdict)

    def close(self, slots: Tensor) -> None:
        """Pass on."""
        self.inner.close(slots)

    def _check(self, scores: Scores, shape: tuple[int, ...], method: str) -> None:
        if tuple(scores.logits.shape) != shape or scores.logits.dtype != torch.float32:
            raise ContractError(
                f"{self._who}.{method} returned logits {_said(scores.logits)}; {list(shape)} float32 is needed."
            )
        if bool(scores.logits.isnan().any()):
            raise ContractError(f"{self._who}.{method} returned logits that are not numbers.")


class CheckedVerifier(Verifier):
    """Passes calls on and checks that a verdict is a path of the draft."""

    lossless = True

    def __init__(self, inner: Verifier) -> None:
        self.inner, self._who = inner, type(inner).__name__
        for name in ("lossless", "needs_q", "chains_only"):
            setattr(self, name, getattr(inner, name))

    def refusal(self, params: SamplingParams) -> str | None:
        """The inner rule's."""
        return self.inner.refusal(params)

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        """A checked verdict."""
        verdict = self.inner.accept(draft, scores, sampling, lengths)
        check_verdict(verdict, draft, f"{self._who}.accept")
        return verdict


def check_draft(draft: Draft, ctx: Context, who: str, vocab_size: int) -> None:
    """Raises ContractError unless the draft is one that `ctx` allows."""
    if not isinstance(draft, Draft):
        raise ContractError(f"{who} returned {type(draft).__name__}; a Draft is needed.")
    rows, nodes = len(ctx.lengths), draft.nodes
    for name, value in (("tokens", draft.tokens), ("parents", draft.parents)):
        if tuple(value.shape) != (rows, nodes) or value.dtype != torch.int64:
            raise ContractError(f"{who} returned {name} {_said(value)}; [{rows}, {nodes}] int64 is needed.")
    if nodes > ctx.budget:
        raise ContractError(f"{who} returned {nodes} nodes; the budget is {ctx.budget}, the anchor included.")
    if not torch.equal(draft.tokens[:, 0], ctx.anchor) or bool((draft.parents[:, 0] != -1).any()):
        raise ContractError(f"{who} returned a draft whose node 0 is not the anchor with parent -1.")
    index = torch.arange(nodes, device=draft.parents.device)
    late = ((draft.parents >= index) | (draft.parents < -1)).nonzero().tolist()
    if late:
        b, i = late[0]
        raise ContractError(
            f"{who} returned parents {_said(draft.parents)} with parents[{b}, {i}] == {int(draft.parents[b, i])}; "
            "a parent must come before its node."
        )
    orphan = draft.used & (index > 0) & ~draft.used.gather(1, draft.parents.clamp(min=0))
    if bool(orphan.any()):
        raise ContractError(f"{who} returned a node whose parent is unused.")
    _check_linear(draft, who)
    _check_q(draft, who, vocab_size)


def check_verdict(verdict: Verdict, draft: Draft, who: str) -> None:
    """Raises ContractError unless the verdict is a path of the draft from the anchor on."""
    for b, (path, accepted) in enumerate(zip(verdict.path.tolist(), verdict.accepted.tolist(), strict=True)):
        kept = path[: accepted + 1]
        sound = kept[:1] == [0] and all(i >= 0 and int(draft.parents[b, i]) == p for p, i in pairwise(kept))
        if not sound or any(i != -1 for i in path[accepted + 1 :]):
            raise ContractError(
                f"{who} returned path {path} with accepted {accepted}; row {b} of the draft has no such path."
            )


def _check_linear(draft: Draft, who: str) -> None:
    index = torch.arange(draft.nodes, device=draft.parents.device)
    if draft.linear and bool(((draft.parents != index - 1) & (draft.parents >= 0)).any()):
        raise ContractError(f"{who} called a draft linear that is no chain in node order.")


def _check_q(draft: Draft, who: str, vocab_size: int) -> None:
    if draft.q is None:
        return
    shape = (*draft.tokens.shape, vocab_size)
    if tuple(draft.q.shape) != shape or not draft.q.is_floating_point():
        raise ContractError(f"{who} returned q {_said(draft.q)}; {list(shape)} floats are needed.")
    sums = draft.q.sum(-1)
    sound = ((sums - 1).abs() <= 1e-3) & (draft.q >= 0).all(-1)
    wrong = draft.used & ~sound
    wrong[:, 0] = False
    if bool(wrong.any()):
        b, i = wrong.nonzero().tolist()[0]
        raise ContractError(
            f"{who} returned q[{b}, {i}], which sums to {float(sums[b, i]):.4f}; it is no distribution."
        )


def _same(a: Draft, b: Draft) -> bool:
    """Whether two drafts are equal, tensor by tensor."""
    q = a.q is b.q if a.q is None or b.q is None else torch.equal(a.q, b.q)
    return q and torch.equal(a.tokens, b.tokens) and torch.equal(a.parents, b.parents)


def _said(x: Tensor) -> str:
    return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}"
