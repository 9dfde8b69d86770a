"""What the tests of the rules share: a target that is a table, drafts drawn from a table, and statistics.

The target is a bigram model: the logits after a node are the row of `table` that its token names, so scores can
be looked up for any tree and the distribution of a continuation is a product of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy import stats
from specdec_verifiers.match import Match
from torch import Tensor

from specdec import Context, Draft, Sampling, SamplingParams, Scores, Verdict, Verifier

#: Chance that one goodness-of-fit test rejects a sound rule, were the seeds drawn afresh.
FALSE_ALARM = 1e-4
START = 5
CHAIN = {k: [-1, *range(k)] for k in range(5)}
TREE = {1: [-1, 0, 1], 2: [-1, 0, 0, 1, 1], 3: [-1, 0, 0, 0, 1, 1, 1]}


def table(vocab: int, seed: int, sharpness: float = 1.2) -> Tensor:
    """Make the logits of a bigram model: [V, V]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab, vocab, generator=generator) * sharpness


def scores(target: Tensor, draft: Draft) -> Scores:
    """Look up what the table says after each node."""
    return Scores(target[draft.tokens])


def sampling_of(params: SamplingParams, rows: int, step: int = 7919) -> Sampling:
    """One rule for all rows, with a seed for each."""
    return Sampling.of([params] * rows, [step * row for row in range(rows)])


def probabilities(target: Tensor, params: SamplingParams) -> Tensor:
    """Return the distribution after each token: [V, V] float64, rows sum to 1."""
    p = sampling_of(params, 1).distribution(target[None])[0].double()
    return p / p.sum(-1, keepdim=True)


@dataclass
class Drawn:
    """Draws every node from the row of q [V, V] that its parent's token names.

    Without replacement, a node is drawn from what its earlier siblings left, and q says so.
    """

    q: Tensor
    parents: list[int]
    replacement: bool = True

    def draft(self, anchor: Tensor, generator: torch.Generator) -> Draft:
        rows, vocab = anchor.shape[0], self.q.shape[0]
        tokens, q = [anchor], [torch.zeros(rows, vocab)]
        for i, parent in enumerate(self.parents[1:], 1):
            weights = self.q[tokens[parent]].clone()
            if not self.replacement:
                for j in range(1, i):
                    if self.parents[j] == parent:
                        weights.scatter_(1, tokens[j][:, None], 0.0)
            weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, torch.ones_like(weights))
            q.append(weights / weights.sum(-1, keepdim=True))
            tokens.append(torch.multinomial(q[-1], 1, generator=generator)[:, 0])
        return _shaped(tokens, self.parents, torch.stack(q, 1))


@dataclass
class Chosen:
    """Chooses the likeliest continuations of q [V, V], siblings in order of rank; no q is stated."""

    q: Tensor
    parents: list[int]
    twins: bool = False

    def draft(self, anchor: Tensor, generator: torch.Generator) -> Draft:
        tokens = [anchor]
        for i, parent in enumerate(self.parents[1:], 1):
            rank = 0 if self.twins else self.parents[1:i].count(parent)
            tokens.append(self.q.argsort(-1, descending=True)[tokens[parent], rank])
        return _shaped(tokens, self.parents, None)


def _shaped(tokens: list[Tensor], parents: list[int], q: Tensor | None) -> Draft:
    linear = parents == CHAIN.get(len(parents) - 1)
    shape = torch.tensor(parents).expand(tokens[0].shape[0], -1)
    return Draft(torch.stack(tokens, 1), shape, q, linear=linear)


def decode(
    rule: Verifier, target: Tensor, drafter: Drawn | Chosen, sampling: Sampling, tokens: int, seed: int = 0
) -> Tensor:
    """Run rounds of this rule from token 0; returns the first `tokens` tokens: [B, tokens]."""
    rows, nodes = sampling.seed.shape[0], len(drafter.parents)
    window = tokens + nodes
    tail = torch.nn.functional.pad(torch.zeros(rows, 1, dtype=torch.int64), (window - 1, 0), value=-1)
    lengths = torch.full((rows,), START)
    ctx = Context(torch.arange(rows), lengths, tail, nodes, sampling)
    generator = torch.Generator().manual_seed(seed)
    out = torch.full((rows, tokens), -1)
    column = torch.arange(nodes)
    while int(ctx.lengths.min()) < START + tokens:
        draft = drafter.draft(ctx.anchor, generator)
        verdict = rule.accept(draft, scores(target, draft), sampling, ctx.lengths)
        emitted = verdict.emitted(draft)
        at = ctx.lengths[:, None] - START + column
        fresh = (column <= verdict.accepted[:, None]) & (at < tokens)
        row = torch.arange(rows)[:, None].expand_as(at)
        out[row[fresh], at[fresh]] = emitted[fresh]
        ctx = ctx.after(draft, verdict)
    return out


def plain(target: Tensor, sampling: Sampling, tokens: int) -> Tensor:
    """Decode token by token from token 0: [B, tokens]."""
    last = torch.zeros(sampling.seed.shape[0], dtype=torch.int64)
    out = []
    for step in range(tokens):
        last = sampling.pick(target[last][:, None], torch.full((last.shape[0], 1), START + step))[:, 0]
        out.append(last)
    return torch.stack(out, 1)


def fits(counts: Tensor, p: Tensor) -> bool:
    """Whether counts may come from p (chi-square; cells that expect under 5 are pooled).

    Rejects a true p with a chance of FALSE_ALARM. A count where p is 0 rejects at once.
    """
    counts, p = counts.double().flatten(), p.double().flatten()
    if bool((counts[p == 0] > 0).any()):
        return False
    expected = p / p.sum() * counts.sum()
    rare = expected < 5
    seen = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    full = wanted > 0
    if int(full.sum()) < 2:
        return True
    return bool(stats.chisquare(seen[full].numpy(), wanted[full].numpy()).pvalue > FALSE_ALARM)


def first_two_fit(rule: Verifier, target: Tensor, drafter: Drawn | Chosen, params: SamplingParams, rows: int) -> bool:
    """Whether the first two tokens of `rows` decodings are distributed as the target's."""
    vocab = target.shape[0]
    out = decode(rule, target, drafter, sampling_of(params, rows), 2)
    p = probabilities(target, params)
    return fits(torch.bincount(out[:, 0] * vocab + out[:, 1], minlength=vocab * vocab), p[0][:, None] * p)


HOT = SamplingParams(temperature=1.0)
NARROW = SamplingParams(temperature=0.7, top_k=3, top_p=0.9)


def distribution_ok(rule: Verifier, rows: int = 6_000) -> bool:
    """Whether what the rule emits is distributed as the target's, over chains and, where allowed, trees."""
    target, q = table(8, 1), table(8, 2).softmax(-1)
    shapes: list[Drawn | Chosen] = [Drawn(q, CHAIN[2]), Chosen(q, CHAIN[1])]
    if not rule.chains_only:
        shapes += [Drawn(q, TREE[2]), Drawn(q, TREE[3], replacement=False)]
        shapes += [Chosen(q, TREE[2]), Chosen(q, TREE[2], twins=True)]
    return all(first_two_fit(rule, target, shape, params, rows) for shape in shapes for params in (HOT, NARROW))


def equality_ok(rule: Verifier, temperature: float = 0.0, tokens: int = 12) -> bool:
    """Whether the rule emits the tokens of ordinary decoding with the same seeds, whatever the draft."""
    target = table(8, 3)
    sampling = sampling_of(SamplingParams(temperature=temperature), 32)
    wanted = plain(target, sampling, tokens)
    near = (target + table(8, 4, 0.5)).softmax(-1)
    shapes: list[Drawn | Chosen] = [Drawn(near, CHAIN[k]) for k in (0, 1, 4)]
    if not rule.chains_only:
        shapes += [Drawn(near, TREE[3]), Chosen(near, TREE[2]), Chosen(near, TREE[3], twins=True)]
    return all(torch.equal(decode(rule, target, shape, sampling, tokens), wanted) for shape in shapes)


class Relayed(Verifier):
    """A rule around another one; the base of planted defects."""

    lossless = True

    def __init__(self, inner: Verifier | None = None) -> None:
        self.inner = inner or Match()
        self.chains_only = self.inner.chains_only  # type: ignore[misc]

    def accept(self, draft: Draft, scores: Scores, sampling: Sampling, lengths: Tensor) -> Verdict:
        return self.inner.accept(draft, scores, sampling, lengths)
