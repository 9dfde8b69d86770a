"""Drafts judged without being verified: what a draft said is held against the text as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from specdec.drafter import Drafter
from specdec.engine.harvest import Harvest
from specdec.engine.judge import Judge
from specdec.engine.worth import WorthBudget
from specdec.types import Context, Draft, Request, Scores, Verdict


@dataclass(frozen=True, slots=True)
class _Guess:
    """A draft's tokens, the place in the text of the first, and how many tokens the budget allowed."""

    at: int
    allowed: int
    tokens: list[int]


@dataclass(slots=True)
class _Text:
    """One request's tokens since it was first drafted for, and the drafts it has neither refuted nor confirmed."""

    tokens: list[int] = field(default_factory=list)
    open: list[_Guess] = field(default_factory=list)

    def settled(self) -> list[tuple[_Guess, int]]:
        """The drafts that are decided by now, with the tokens that came as they said; they are open no more."""
        decided, still = [], []
        for guess in self.open:
            came = self.tokens[guess.at : guess.at + len(guess.tokens)]
            right = _agree(came, guess.tokens)
            done = right < len(came) or len(came) == len(guess.tokens)
            if done:
                decided.append((guess, right))
            else:
                still.append(guess)
        self.open = still
        return decided


class ByText(Judge):
    """Cuts drafts to what the policy finds worth verifying, and learns from all that was drafted."""

    def __init__(self, drafter: Drafter, policy: WorthBudget) -> None:
        self._policy = policy
        self._cut = Cut(drafter, policy)
        self.drafter = self._cut
        self._texts: dict[str, _Text] = {}

    def begin(self, ids: Sequence[str]) -> None:
        """See `Judge`."""
        self._cut.begin(ids)

    def settle(self, ids: Sequence[str], harvest: Harvest) -> None:
        """See `Judge`."""
        guesses: list[list[int]] | list[None] = self._cut.drafted or [None] * len(ids)
        for request, tokens, guess in zip(ids, harvest.tokens, guesses, strict=True):
            text = self._texts.setdefault(request, _Text())
            if guess is not None:
                text.open.append(_Guess(len(text.tokens), harvest.budget - 1, guess))
            text.tokens += tokens
            for known, right in text.settled():
                self._policy.learn(request, known.allowed, len(known.tokens), right)

    def forget(self, request_id: str) -> None:
        """See `Judge`."""
        self._texts.pop(request_id, None)


class Cut(Drafter):
    """A drafter whose drafts are cut to what is worth verifying.

    drafted: the whole draft of each row of the round under way, or None before there is one.
    """

    def __init__(self, inner: Drafter, policy: WorthBudget) -> None:
        self.inner, self.spec = inner, inner.spec
        self._policy = policy
        self._ids: Sequence[str] = ()
        self.drafted: list[list[int]] | None = None

    def begin(self, ids: Sequence[str]) -> None:
        """A round of these requests begins."""
        self._ids, self.drafted = ids, None

    def propose(self, ctx: Context) -> Draft:
        """The inner draft, or as much of it as is worth its verification."""
        draft = self.inner.propose(ctx)
        lengths = (draft.used.sum(1) - 1).tolist()
        self.drafted = [row[1 : n + 1] for row, n in zip(draft.tokens.tolist(), lengths, strict=True)]
        count = self._policy.worth(self._ids, lengths) if any(lengths) else 0
        return _first(draft, 1 + count)

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Pass on."""
        self.inner.open(slots, requests, scores)

    def while_verifying(self, ctx: Context, draft: Draft) -> None:
        """Pass on."""
        self.inner.while_verifying(ctx, draft)

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Pass on."""
        self.inner.commit(ctx, draft, verdict, scores)

    def close(self, slots: Tensor) -> None:
        """Pass on."""
        self.inner.close(slots)


def _first(chains: Draft, nodes: int) -> Draft:
    """The first `nodes` nodes of each chain."""
    if nodes >= chains.nodes:
        return chains
    q = None if chains.q is None or nodes == 1 else chains.q[:, :nodes]
    return replace(chains, tokens=chains.tokens[:, :nodes], parents=chains.parents[:, :nodes], q=q)


def _agree(came: Sequence[int], said: Sequence[int]) -> int:
    """How many first tokens are the same."""
    return next((i for i, (a, b) in enumerate(zip(came, said, strict=False)) if a != b), min(len(came), len(said)))
