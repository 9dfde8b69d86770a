"""The host's side of one request that is being decoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor

from specdec.engine.harvest import Harvest
from specdec.engine.logprobs import logprobs_of
from specdec.engine.stops import Stopper
from specdec.shaping import RowShaper
from specdec.types import Completion, Request, RequestStats, TokenLogprob


@dataclass(slots=True, weakref_slot=True, eq=False)
class Row:
    """One request: what was asked, what came out, and where its state lies.

    ids: the prompt on the host. slot: -1 until it is admitted. index: which of the request's n completions. order: when
    it was asked for. walked: tokens of this round that were pushed while a user's processors were run. told: its end is
    in the news. reused, ahead: prompt tokens whose rows were there, from earlier requests and from gap work.
    """

    request: Request
    ids: list[int]
    seed: int
    stopper: Stopper
    shaper: RowShaper
    index: int = 0
    order: int = 0
    slot: int = -1
    walked: list[int] | None = None
    told: bool = False
    logprobs: list[TokenLogprob] | None = None
    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    reused: int = 0
    ahead: int = 0
    state_ms: float = 0.0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    queued_at: float = field(default_factory=perf_counter)
    admitted_at: float = 0.0

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def names(self) -> tuple[str, str]:
        """Its id, and the id of the request whose n completions it is one of."""
        return self.id, self.id.removesuffix(f".{self.index}") if self.request.params.n > 1 else self.id

    @property
    def tokens(self) -> list[int]:
        """New tokens so far."""
        return self.stopper.output.tokens

    @property
    def finished(self) -> bool:
        """Whether no more tokens come."""
        return self.stopper.output.finish_reason is not None

    def push(self, tokens: list[int]) -> list[int]:
        """Add tokens, and tell the constraints, until one ends the request; returns those that count."""
        kept = 0
        for token in tokens:
            if self.finished:
                break
            kept += 1
            self.shaper.advance([token])
            self.stopper.push(token, complete=self.shaper.done)
        return tokens[:kept]

    def keep(self, tokens: list[int]) -> list[int]:
        """Push a round's tokens unless they were walked; returns those that count."""
        kept = self.push(tokens) if self.walked is None else self.walked
        self.walked = None
        return kept

    def count(self, harvest: Harvest, b: int, emitted: int) -> None:
        """Add one round, in which this was row `b`, to the request's counts."""
        self.rounds += 1
        self.emitted += emitted
        self.drafted += harvest.drafted[b]
        self.accepted += min(harvest.accepted[b], emitted)
        self.draft_ms += harvest.draft_ms
        self.verify_ms += harvest.verify_ms

    def explain(self, logits: Tensor, tokens: list[int]) -> None:
        """Note the tokens' log-probabilities, if they were asked for; logits [K, V], row j before token j."""
        if self.logprobs is not None and tokens:
            self.logprobs += logprobs_of(logits, tokens, self.request.params.logprobs or 0)

    def completion(self) -> Completion:
        """The answer as it stands."""
        now = perf_counter()
        out = self.stopper.output
        stats = RequestStats(
            rounds=self.rounds,
            emitted=self.emitted,
            drafted=self.drafted,
            accepted=self.accepted,
            prompt_tokens=len(self.ids),
            reused_tokens=self.reused,
            gap_tokens=self.ahead,
            state_ms=self.state_ms,
            queue_ms=((self.admitted_at or now) - self.queued_at) * 1e3,
            prefill_ms=self.prefill_ms,
            draft_ms=self.draft_ms,
            verify_ms=self.verify_ms,
            total_ms=(now - self.queued_at) * 1e3,
        )
        return Completion(
            tokens=list(out.tokens),
            text=out.text,
            finish_reason=out.finish_reason or "abort",
            stats=stats,
            logprobs=None if self.logprobs is None else self.logprobs[: len(out.tokens)],
            id=self.id,
            seed=self.seed,
            index=self.index,
        )
