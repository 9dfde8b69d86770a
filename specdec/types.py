"""The tensors that roles pass to each other, and what users pass in and get back.

Letters (docs/glossary.md): B rows, N nodes in a draft with the anchor, V vocabulary, W tail window, H hidden
size. The anchor is the last emitted token; it is not in the target's cache yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from specdec import tree
from specdec.errors import ContractError
from specdec.params import SamplingParams
from specdec.sampling import Sampling


@dataclass(frozen=True, eq=False)
class Draft:
    """Proposed tokens: for each row a tree rooted at the anchor. A chain is a tree with one branch.

    tokens   [B, N] int64    node tokens; column 0 is the anchor, already emitted
    parents  [B, N] int64    parents[:, 0] == -1; 0 <= parents[:, i] < i; -1 at i > 0 marks an unused node
    q        [B, N, V] float32, or None
             the distribution tokens[:, i] was drawn from, given its path and its earlier siblings; column 0 is
             ignored
             None means a point mass: chosen, not drawn. A drafter that cannot state q exactly leaves it None.
    linear   known on the host: every row is a chain in node order, so an accepted path needs no compaction
    """

    tokens: Tensor
    parents: Tensor
    q: Tensor | None = None
    linear: bool = False

    @classmethod
    def chain(cls, anchor: Tensor, tokens: Tensor, q: Tensor | None = None, counts: Tensor | None = None) -> Draft:
        """Rows of tokens one after another.

        anchor [B], tokens [B, K], q [B, K, V]; counts [B] int64 says how many tokens of each row count (all).
        """
        rows, k = tokens.shape
        index = torch.arange(k + 1, device=tokens.device)
        parents = (index - 1).expand(rows, k + 1)
        if counts is not None:
            parents = torch.where(index <= counts[:, None], parents, -1)
        if q is not None:
            q = torch.nn.functional.pad(q, (0, 0, 1, 0))
        return cls(torch.cat([anchor[:, None], tokens], 1), parents, q, linear=True)

    @classmethod
    def empty(cls, anchor: Tensor) -> Draft:
        """The anchor alone: a round with it is plain decoding."""
        return cls(anchor[:, None], torch.full_like(anchor[:, None], -1), None, linear=True)

    @classmethod
    def select(cls, mask: Tensor, a: Draft, b: Draft) -> Draft:
        """Rows of `a` where mask [B] is true, else of `b`; the shorter one is padded with unused nodes."""
        n = max(a.tokens.shape[1], b.tokens.shape[1])
        a, b = a.padded(n), b.padded(n)
        pick = mask[:, None]
        if (a.q is None) != (b.q is None):
            q = torch.where(pick[..., None], a.point_mass_like(b), b.point_mass_like(a))
        elif a.q is not None and b.q is not None:
            q = torch.where(pick[..., None], a.q, b.q)
        else:
            q = None
        return cls(
            torch.where(pick, a.tokens, b.tokens),
            torch.where(pick, a.parents, b.parents),
            q,
            linear=a.linear and b.linear,
        )

    @cached_property
    def used(self) -> Tensor:
        """Which nodes exist: [B, N] bool."""
        return tree.used(self.parents)

    @cached_property
    def ancestors(self) -> Tensor:
        """Which nodes each node may see: [B, N, N] bool."""
        return tree.chain_ancestors(self.parents) if self.linear else tree.ancestors(self.parents)

    @cached_property
    def depth(self) -> Tensor:
        """Steps from the anchor: [B, N] int64; 0 at unused nodes."""
        return self.ancestors.sum(-1) - 1

    @property
    def nodes(self) -> int:
        """N: nodes with the anchor, used or not."""
        return self.tokens.shape[1]

    def padded(self, nodes: int) -> Draft:
        """At least `nodes` wide, with unused nodes on the right."""
        extra = nodes - self.nodes
        if extra <= 0:
            return self
        pad = (0, extra)
        q = None if self.q is None else torch.nn.functional.pad(self.q, (0, 0, 0, extra))
        return replace(
            self,
            tokens=torch.nn.functional.pad(self.tokens, pad),
            parents=torch.nn.functional.pad(self.parents, pad, value=-1),
            q=q,
        )

    def pruned(self, keep: Tensor) -> Draft:
        """Without the nodes where keep [B, N] is false, and without what hangs below them."""
        whole = ~(self.ancestors & ~keep[:, None, :]).any(-1) & self.used
        parents = torch.where(whole, self.parents, -1)
        return replace(self, parents=parents, tokens=torch.where(whole, self.tokens, self.tokens[:, :1]))

    def point_mass_like(self, other: Draft) -> Tensor:
        """This draft's q, or the point masses it stands for in the vocabulary of `other.q`."""
        if self.q is not None:
            return self.q
        assert other.q is not None  # noqa: S101  callers pass a draft that has q
        return torch.zeros_like(other.q).scatter_(-1, self.tokens[..., None].clamp(min=0), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a drafter may look at. A row may be real or a guess about the future; a drafter cannot tell.

    slots    [R] int64     whose state to read; two rows may name one slot
    lengths  [R] int64     tokens up to and including the anchor
    tail     [R, W] int64  the last W of them, right aligned, -1 before the start
    budget   nodes a draft may have, the anchor included
    wants_q  the rule in force uses q: a drafter that draws states what it drew from
    room     [R] int64 or None: draft tokens that can still count; deeper nodes are dropped
    """

    slots: Tensor
    lengths: Tensor
    tail: Tensor
    budget: int
    sampling: Sampling
    wants_q: bool = False
    room: Tensor | None = None

    @property
    def anchor(self) -> Tensor:
        """The last emitted token of each row: [R] int64."""
        return self.tail[:, -1]

    def after(self, draft: Draft, verdict: Verdict) -> Context:
        """The context of the next round."""
        count = verdict.accepted + 1
        emitted = verdict.emitted(draft)
        index = count[:, None] + torch.arange(self.tail.shape[1], device=self.tail.device)
        tail = torch.cat([self.tail, emitted], 1).gather(1, index)
        room = None if self.room is None else self.room - count
        return replace(self, lengths=self.lengths + count, tail=tail, room=room)

    def rows(self, index: Tensor) -> Context:
        """The rows named by `index` [R'] int64, in that order."""
        return replace(
            self,
            slots=self.slots[index],
            lengths=self.lengths[index],
            tail=self.tail[index],
            sampling=self.sampling.rows(index),
            room=None if self.room is None else self.room[index],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What the target says. logits [B, N, V] float32: row i is what follows node i.

    hidden [B, N, H * taps], or None: the residual stream after each tapped layer, side by side.
    """

    logits: Tensor
    hidden: Tensor | None = None

    def masked(self, allowed: Tensor) -> Scores:
        """With -inf where allowed [B, N, V] bool is false."""
        return replace(self, logits=self.logits.masked_fill(~allowed, -torch.inf))


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What was kept.

    path        [B, N] int64   node indices from the anchor on, -1 padded
    accepted    [B] int64      drafts kept
    next_token  [B] int64      the correction, or the bonus after a whole path
    """

    path: Tensor
    accepted: Tensor
    next_token: Tensor

    def emitted(self, draft: Draft) -> Tensor:
        """The new tokens: [B, N] int64, accepted + 1 of them in each row, -1 padded."""
        tokens = torch.where(self.path >= 0, draft.tokens.gather(1, self.path.clamp(min=0)), -1)
        shifted = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], -1)], 1)
        return shifted.scatter(1, self.accepted[:, None], self.next_token[:, None])


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and its options.

    prompt   text or token ids; roles see it as a tensor of int64 ids
    session  whose memory this request belongs to (an agent, a conversation); None keeps it apart
    owner    who may share state between sessions; None shares nothing beyond the session
    call     which of an agent's kinds of request this is (act, summarise, ...)
    marks    prompt tokens after which a part of the prompt ends (fixed text, goal, history, ...), in any order
    id       chosen by the engine when empty; `Engine.abort` takes it
    """

    prompt: str | Sequence[int] | Tensor
    params: SamplingParams = field(default_factory=SamplingParams)
    session: str | None = None
    id: str = ""
    owner: str | None = None
    call: str = ""
    marks: Sequence[int] = ()

    @property
    def ids(self) -> Tensor:
        """The prompt as int64 ids; what roles are given always has them."""
        if not isinstance(self.prompt, Tensor):
            raise ContractError(f"request {self.id!r} reached a role without token ids. Engines encode prompts first.")
        return self.prompt


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target's own log-probability of one emitted token (no penalty, mask or temperature), and the best ones."""

    token: int
    logprob: float
    top: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Counts and times of one request.

    rounds    rounds it took part in; the prefill, which yields the first token, is none
    emitted   tokens that rounds put into the completion, so 1 + emitted == len(tokens)
    drafted   draft tokens that were verified for it; accepted: those that ended up in its text
    prompt_tokens  all of the prompt; reused_tokens: those whose rows an earlier request had left; gap_tokens: those
              that `Engine.idle` had prefilled and no request had used before. The rest was prefilled for this one.
    *_ms      milliseconds; a round's time is counted whole for each of its rows, and so is a prefill's
    state_ms  looking up and copying kept rows, before the prefill and after the last token; not in prefill_ms
    """

    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    gap_tokens: int = 0
    state_ms: float = 0.0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    total_ms: float = 0.0

    @property
    def tau(self) -> float:
        """Mean tokens emitted a round; 0 without a round."""
        return self.emitted / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one request.

    tokens are the new ones, with the EOS that ended them; text leaves special tokens and stop strings out (empty
    without a tokenizer). finish_reason is "stop", "length" or "abort".
    """

    tokens: list[int]
    text: str
    finish_reason: str
    stats: RequestStats
    logprobs: list[TokenLogprob] | None = None
    id: str = ""
    seed: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round added to a streamed request; the last one has a finish_reason."""

    tokens: list[int]
    text: str
    finish_reason: str | None = None
    completion: Completion | None = None
