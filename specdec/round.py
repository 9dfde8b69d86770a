"""One round: propose, score, accept, commit. The only place where this order is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specdec.drafter import Drafter
from specdec.lanes import Lanes, Serial
from specdec.target import Target
from specdec.types import Context, Draft, Scores, Verdict
from specdec.verifier import Verifier

#: Penalties, biases, masks and grammars: scores in, scores out, node by node.
Shape = Callable[[Context, Draft, Scores], Scores]


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What one round did; `ctx` is the context of the next."""

    draft: Draft
    scores: Scores
    verdict: Verdict
    ctx: Context


def unshaped(ctx: Context, draft: Draft, scores: Scores) -> Scores:
    """The scores as they come."""
    return scores


def propose(drafter: Drafter, ctx: Context, vocab_size: int) -> Draft:
    """The drafter's draft without nodes that cannot count: too deep for the row, or outside the vocabulary.

    At budget 1 the drafter is not called.
    """
    if ctx.budget <= 1:
        return Draft.empty(ctx.anchor)
    draft = drafter.propose(ctx)
    if draft.nodes == 1:
        return draft
    keep = (draft.tokens >= 0) & (draft.tokens < vocab_size)
    keep[:, 0] = True
    if ctx.room is not None:
        keep &= draft.depth <= ctx.room[:, None]
    return draft.pruned(keep)


def run_round(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    ctx: Context,
    *,
    shape: Shape = unshaped,
    lanes: Lanes | None = None,
) -> Round:
    """Propose, score, accept, commit; writes the target's and the drafter's state.

    While the target scores, the drafter may prepare what comes next (`while_verifying`); `lanes` decide whether
    that runs beside the scoring or after it. Neither can change a token.
    """
    lanes = lanes or Serial()
    with lanes.draft("draft"):
        draft = propose(drafter, ctx, target.spec.vocab_size)
    with lanes.verify("verify"):
        scores = target.score(ctx.slots, ctx.lengths, draft)
    with lanes.draft("draft_ahead"):
        drafter.while_verifying(ctx, draft)
    with lanes.verify("accept"):
        scores = shape(ctx, draft, scores)
        verdict = verifier.accept(draft, scores, ctx.sampling, ctx.lengths)
    with lanes.verify("commit"):
        target.commit(ctx.slots, ctx.lengths, draft, verdict)
    lanes.join()
    with lanes.draft("commit_draft"):
        drafter.commit(ctx, draft, verdict, scores)
    return Round(draft, scores, verdict, ctx.after(draft, verdict))
