"""A batch being decoded: rows come and go, each round serves all that are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter

import torch

from specdec.engine.admission import first_tokens, make_rows
from specdec.engine.batch import Batch
from specdec.engine.harvest import read
from specdec.engine.parts import Parts
from specdec.engine.row import Row
from specdec.engine.stats import SessionStats
from specdec.engine.walk import walk
from specdec.errors import CapacityError, ContractError, OptionError
from specdec.round import Round, propose, run_round
from specdec.shaping import Nodes
from specdec.types import Completion, Context, Draft, Request, Scores, Verdict

_orders = count()


@dataclass(frozen=True, slots=True)
class Emitted:
    """What one round added to one request; text is what became certain. finish_reason: set if this was the last."""

    id: str
    tokens: list[int]
    text: str
    finish_reason: str | None = None

    @classmethod
    def of(cls, row: Row, tokens: list[int]) -> Emitted:
        """The news of `row`."""
        return cls(row.id, tokens, row.stopper.fresh_text(), row.stopper.output.finish_reason)


class DecodeSession:
    """A batch being decoded. The verbs may be called one by one (custom decoders) or all at once (`step`).

    More requests than free slots wait; a finished row's slot is filled before the next round. `stats` count on the
    device.
    """

    def __init__(self, parts: Parts, requests: Sequence[Request] = ()) -> None:
        self._parts = parts
        self._waiting: deque[Row] = deque()
        self._batch = Batch(parts)
        self._judge = parts.judge()
        self._finished: list[Row] = []
        self._news: list[Emitted] = []
        self._aborts: deque[str] = deque()
        self._raw: Scores | None = None
        self.closed = False
        self.stats = SessionStats(parts.target.spec.max_budget, parts.target.spec.device)
        try:
            for request in requests:
                self.add(request)
        except BaseException:
            self.close()
            raise

    def add(self, request: Request) -> list[str]:
        """Queue a request; returns the ids of its completions (`params.n` of them). It joins at the next round."""
        with self._parts.gate.arriving():
            return self._add(request)

    def _add(self, request: Request) -> list[str]:
        if self.closed:
            raise ContractError("a request was added to a closed session. Begin a new one with Engine.session.")
        rows = make_rows(self._parts, request, next(_orders))
        live = {name for row in (*self._waiting, *self._batch.rows) for name in row.names}
        if not live.isdisjoint(name for row in rows for name in row.names):
            raise OptionError(
                f"request id {request.id!r} was given; a request of that id is being decoded. Choose another."
            )
        for _ in rows[1:]:
            next(_orders)
        self._waiting.extend(rows)
        self._parts.gate.join(rows)
        return [row.id for row in rows]

    def abort(self, request_id: str) -> None:
        """End a request at the next round's border, whatever phase it is in; safe to call from another thread.

        A request of `n` completions ends with all of them; one completion has an id of its own.
        """
        self._aborts.append(request_id)

    @property
    def active(self) -> bool:
        """Whether rows are being decoded; what waits is admitted first."""
        self._admit()
        return bool(self._batch.rows)

    @property
    def ctx(self) -> Context:
        """The context of the round under way."""
        return self._batch.ctx

    # The verbs, one by one. `run_round` has the same order.

    def propose(self, budget: int | None = None) -> Draft:
        """A draft for every row of at most `budget` nodes; the policy chooses how many, and how many stay, if None."""
        self._begin(budget)
        drafter = self._judge.drafter if budget is None else self._parts.drafter
        with self._parts.lanes.draft("draft"):
            return propose(drafter, self._batch.ctx, self._parts.target.spec.vocab_size)

    def score(self, draft: Draft) -> Scores:
        """The target's scores with each request's penalties, biases, masks and grammar applied."""
        ctx, parts = self._batch.ctx, self._parts
        with parts.lanes.verify("verify"):
            raw = parts.target.score(ctx.slots, ctx.lengths, draft)
        with parts.lanes.draft("draft_ahead"):
            parts.drafter.while_verifying(ctx, draft)
        return self._constrained(draft, raw)

    def accept(self, draft: Draft, scores: Scores) -> Verdict:
        """The rule's verdict; a user's own processors are called here, along the accepted path."""
        ctx = self._batch.ctx
        with self._parts.lanes.verify("accept"):
            scores = self._walked(ctx, draft, scores)
            return self._parts.verifier.accept(draft, scores, ctx.sampling, ctx.lengths)

    def commit(self, draft: Draft, verdict: Verdict) -> list[Emitted]:
        """Keep what was accepted; what came out, one entry for each request with news."""
        ctx, parts = self._batch.ctx, self._parts
        with parts.lanes.verify("commit"):
            parts.target.commit(ctx.slots, ctx.lengths, draft, verdict)
        scores = self._raw or Scores(torch.empty(0))
        with parts.lanes.draft("commit_draft"):
            parts.drafter.commit(ctx, draft, verdict, scores)
        return self._collect(Round(draft, scores, verdict, ctx.after(draft, verdict)))

    # All verbs at once.

    def step(self) -> list[Emitted]:
        """One round of every row: what came out, first tokens of newly admitted requests included."""
        self._begin(None)
        if not self._batch.rows:
            return self._take_news()
        parts, drafter, ctx = self._parts, self._judge.drafter, self._batch.ctx
        return self._collect(
            run_round(parts.target, drafter, parts.verifier, ctx, shape=self._shape, lanes=parts.lanes)
        )

    def run(self) -> list[Completion]:
        """Decode until nothing is left; the completions in the order of the requests."""
        try:
            while self.active:
                self.step()
        finally:
            self.close()
        return self.take_completions()

    def take_completions(self) -> list[Completion]:
        """Completions that ended since the last call, in the order they were asked for."""
        rows, self._finished = self._finished, []
        return [row.completion() for row in sorted(rows, key=lambda row: row.order)]

    def close(self) -> None:
        """Abort what is left and free every slot; calling it again does nothing."""
        for row in [*self._waiting, *self._batch.rows]:
            row.stopper.finish("abort")
        self.closed = True
        self._sweep()

    def _begin(self, budget: int | None) -> None:
        """Admit what waits and fix the round's budget."""
        self._admit()
        self._parts.lanes.reset()
        self._batch.choose(budget)
        self._judge.begin([row.id for row in self._batch.rows])

    def _shape(self, ctx: Context, draft: Draft, scores: Scores) -> Scores:
        return self._walked(ctx, draft, self._constrained(draft, scores))

    def _constrained(self, draft: Draft, scores: Scores) -> Scores:
        self._raw = scores
        rows = self._batch.rows
        if not any(row.shaper.constraints or row.request.params.logits_processors for row in rows):
            return scores
        logits = scores.logits.clone()
        for b, row in enumerate(rows):
            row.shaper.apply(logits[b], Nodes.of(draft, b))
        return replace(scores, logits=logits)

    def _walked(self, ctx: Context, draft: Draft, scores: Scores) -> Scores:
        for b, row in enumerate(self._batch.rows):
            if row.request.params.logits_processors:
                walk(row, b, ctx, draft, scores.logits, self._parts.verifier)
        return scores

    def _collect(self, done: Round) -> list[Emitted]:
        """Read the verdict, cut each row where it ends, and let finished rows go."""
        self.stats.add(done.verdict)
        harvest = read(done, self._batch.budget, self._parts.lanes)
        ids = [row.id for row in self._batch.rows]
        self._judge.settle(ids, harvest)
        self._parts.policy.observe(harvest.result(ids))
        self._mark_aborted()
        for b, row in enumerate(self._batch.rows):
            kept = row.keep(harvest.tokens[b])
            row.count(harvest, b, len(kept))
            if self._raw is not None:
                row.explain(self._raw.logits[b, done.verdict.path[b, : len(kept)]], kept)
            self._tell(row, kept)
        self._raw = None
        self._batch.advance(done.ctx)
        self._sweep()
        return self._take_news()

    def _admit(self) -> None:
        """Fill free slots with what waits; each new row's first token comes from its prefill."""
        self._mark_aborted()
        self._sweep()
        while self._waiting and self._parts.slots.free:
            size = min(len(self._waiting), self._parts.slots.free)
            self._open([self._waiting.popleft() for _ in range(size)])
            self._mark_aborted()
            self._sweep()
        if self._waiting and not self._batch.rows:
            raise CapacityError(
                f"{len(self._waiting)} requests wait; all {self._parts.slots.count} slots are held by other "
                "sessions. Close one, or load the target with more slots."
            )

    def _open(self, rows: list[Row]) -> None:
        start = perf_counter()
        for row in rows:
            row.slot = self._parts.slots.take()
            row.admitted_at = start
        try:
            tokens = first_tokens(self._parts, rows)
        except BaseException:
            self._drop(rows)
            raise
        elapsed = (perf_counter() - start) * 1e3
        for row, token in zip(rows, tokens, strict=True):
            row.prefill_ms = elapsed - row.state_ms
            self._tell(row, row.keep([token]))
        self._batch.join(rows)

    def _mark_aborted(self) -> None:
        """Finish the rows whose end was asked for since the last call."""
        asked = {self._aborts.popleft() for _ in range(len(self._aborts))}
        for row in [*self._waiting, *self._batch.rows] if asked else []:
            if not asked.isdisjoint(row.names):
                row.stopper.finish("abort")

    def _sweep(self) -> None:
        """Let go of rows that ended, in the queue or in the batch."""
        queued = [row for row in self._waiting if row.finished]
        if queued:
            self._waiting = deque(row for row in self._waiting if not row.finished)
            self._let_go(queued)
        ended = [row for row in self._batch.rows if row.finished]
        if ended:
            self._drop(ended)

    def _drop(self, rows: list[Row]) -> None:
        """Free the rows' slots and let go of them, whatever the parts do; a row that has not ended is aborted."""
        try:
            self._batch.leave(rows)
        finally:
            for row in rows:
                row.stopper.finish("abort")
            self._let_go(rows)

    def _let_go(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._tell(row, [])
            self._judge.forget(row.id)
            self._parts.policy.forget(row.id)
            self._parts.gate.leave(row)
            self._finished.append(row)

    def _tell(self, row: Row, tokens: list[int]) -> None:
        """Note the row's news; its end is told once."""
        if not row.told:
            row.told = row.finished
            self._news.append(Emitted.of(row, tokens))

    def _take_news(self) -> list[Emitted]:
        news, self._news = self._news, []
        return news
