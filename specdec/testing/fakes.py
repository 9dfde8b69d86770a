"""Drafters that are right, wrong, slow or random on purpose."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specdec.drafter import Drafter, DrafterSpec
from specdec.target import Target
from specdec.text import TextCodec
from specdec.types import Context, Draft, Request, Scores, Verdict


class ScriptedDrafter(Drafter):
    """The k-th round of a request proposes script[k], a list of tokens, as a chain.

    An empty list means no draft, and so does every round past the end of the script. q[k], if given, holds one
    distribution [V] for each token of script[k]. Every request runs the script from its start.
    """

    def __init__(self, script: Sequence[Sequence[int]], *, q: Sequence[Sequence[Tensor]] | None = None) -> None:
        self.script = [list(tokens) for tokens in script]
        self.q = q
        self.spec = DrafterSpec(max_budget=1 + max([len(tokens) for tokens in self.script], default=0))
        self._round: dict[int, int] = {}
        self._vocab = 0

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Learn the size of the vocabulary."""
        self._vocab = target.spec.vocab_size

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Start the script."""
        for slot in slots.tolist():
            self._round[slot] = 0

    def propose(self, ctx: Context) -> Draft:
        """The script's line for each row's round."""
        lines = [self._line(slot, ctx.budget - 1) for slot in ctx.slots.tolist()]
        widest = max(map(len, lines))
        tokens = torch.tensor([line + [0] * (widest - len(line)) for line in lines], dtype=torch.int64)
        counts = torch.tensor([len(line) for line in lines])
        q = None if self.q is None or not widest else self._stated(ctx, tokens)
        return Draft.chain(ctx.anchor, tokens.view(len(lines), widest), q=q, counts=counts)

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Turn to the next line."""
        for slot in ctx.slots.tolist():
            self._round[slot] += 1

    def close(self, slots: Tensor) -> None:
        """Forget the slots' rounds."""
        for slot in slots.tolist():
            self._round.pop(slot, None)

    def _line(self, slot: int, most: int) -> list[int]:
        at = self._round[slot]
        return self.script[at][:most] if at < len(self.script) else []

    def _stated(self, ctx: Context, tokens: Tensor) -> Tensor:
        assert self.q is not None
        q = torch.zeros(*tokens.shape, self._vocab).scatter_(-1, tokens[..., None].clamp(min=0), 1.0)
        for b, slot in enumerate(ctx.slots.tolist()):
            at = self._round[slot]
            if at < len(self.q):
                for i, row in enumerate(self.q[at][: tokens.shape[1]]):
                    q[b, i] = torch.as_tensor(row, dtype=torch.float32)
        return q


class Echo(Drafter):
    """Knows the answers: proposes them, each token replaced by a wrong one with probability 1 - rate.

    answers: prompt ids to new tokens. Without an answer it proposes nothing.
    """

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], *, rate: float = 1.0, seed: int = 0) -> None:
        self._answers = {key: list(answer) for key, answer in answers.items()}
        self._rate, self._seed = rate, seed
        self._text: dict[int, list[int]] = {}
        self._vocab = 2

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Learn the size of the vocabulary."""
        self._vocab = target.spec.vocab_size

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Find the answers."""
        for slot, request in zip(slots.tolist(), requests, strict=True):
            key = tuple(int(t) for t in request.ids.tolist())
            self._text[slot] = [*key, *self._answers.get(key, [])]

    def propose(self, ctx: Context) -> Draft:
        """What comes next in each answer, with its share of mistakes; the same mistakes when asked again."""
        most = ctx.budget - 1
        lines = [
            self._text[slot][length : length + most]
            for slot, length in zip(ctx.slots.tolist(), ctx.lengths.tolist(), strict=True)
        ]
        tokens = torch.zeros(len(lines), most, dtype=torch.int64)
        for b, (line, length) in enumerate(zip(lines, ctx.lengths.tolist(), strict=True)):
            dice = torch.Generator().manual_seed(self._seed + length)
            wrong = torch.rand(most, generator=dice) > self._rate
            right = torch.tensor(line, dtype=torch.int64)
            tokens[b, : len(line)] = torch.where(wrong[: len(line)], (right + 1) % self._vocab, right)
        return Draft.chain(ctx.anchor, tokens, counts=torch.tensor([len(line) for line in lines]))

    def close(self, slots: Tensor) -> None:
        """Forget the slots' answers."""
        for slot in slots.tolist():
            self._text.pop(slot, None)


class Wrong(Echo):
    """Knows the answers and never proposes a right token."""

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        super().__init__(answers, rate=-1.0)


class RandomTree(Drafter):
    """Random tokens in random trees, the same for the same text: plumbing without luck.

    narrow: tokens are drawn below this number, so that small vocabularies are hit now and then.
    """

    spec = DrafterSpec(window=2, trees=True)

    def __init__(self, seed: int = 3, narrow: int | None = None) -> None:
        self._seed, self._narrow = seed, narrow
        self._vocab = 2

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Learn the size of the vocabulary."""
        self._vocab = min(self._narrow or target.spec.vocab_size, target.spec.vocab_size)

    def propose(self, ctx: Context) -> Draft:
        """Parents-first random trees; about one node in eight is left unused."""
        n = ctx.budget
        tokens, parents = [], []
        for length, anchor in zip(ctx.lengths.tolist(), ctx.anchor.tolist(), strict=True):
            dice = torch.Generator().manual_seed(self._seed + 1009 * length + anchor)
            row = torch.randint(self._vocab, (n,), generator=dice)
            row[0] = anchor
            tokens.append(row)
            parents.append(torch.tensor(self._shape(n, dice)))
        return Draft(torch.stack(tokens), torch.stack(parents))

    @staticmethod
    def _shape(n: int, dice: torch.Generator) -> list[int]:
        parents, there = [-1], [0]
        for i in range(1, n):
            if int(torch.randint(8, (1,), generator=dice)) == 0:
                parents.append(-1)
                continue
            parents.append(there[int(torch.randint(len(there), (1,), generator=dice))])
            there.append(i)
        return parents


class SlowDrafter(Drafter):
    """Proposes what another drafter does, `delay_s` later."""

    def __init__(self, inner: Drafter, delay_s: float) -> None:
        self.inner, self.delay_s, self.spec = inner, delay_s, inner.spec
        self.proposals = 0

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Pass on."""
        self.inner.attach(target, codec)

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Pass on."""
        self.inner.open(slots, requests, scores)

    def propose(self, ctx: Context) -> Draft:
        """The inner draft, late; `proposals` counts the calls."""
        self.proposals += 1
        time.sleep(self.delay_s)
        return self.inner.propose(ctx)

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Pass on."""
        self.inner.commit(ctx, draft, verdict, scores)

    def close(self, slots: Tensor) -> None:
        """Pass on."""
        self.inner.close(slots)
