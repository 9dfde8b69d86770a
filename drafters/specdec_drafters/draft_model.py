"""A smaller model of the same vocabulary drafts token by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from specdec import noise, registry
from specdec.drafter import Drafter, DrafterSpec
from specdec.errors import CompositionError
from specdec.target import Target
from specdec.text import TextCodec, codec_of
from specdec.types import Context, Draft, Request, Scores, Verdict

_WINDOW = 32


class DraftModel(Drafter):
    """Runs another target as the drafter; its cache is kept beside the target's, slot by slot.

    With `match` it draws with the target's own noise, which keeps most draws equal (Daliri et al. 2024); where the rule
    reads q it draws on its own and states q. Each slot's cached rows are those whose tokens agree with what was
    committed, so rows written for a refused or imagined future are never trusted.

    model: a name or folder for `HFTarget.load`, or a `Target` with at least the target's slots. dtype: as there.
    """

    spec = DrafterSpec(window=_WINDOW)

    def __init__(self, model: str | Path | Target, dtype: str | None = None) -> None:
        self._source, self._dtype = model, dtype
        self._vocab = 0
        self._behind = 1
        self._rows = 0
        self._calls = 0

    @property
    def model(self) -> Target:
        """The drafting model; known once attached."""
        if not isinstance(self._source, Target):
            raise CompositionError("draft_model is not attached to a target yet. Build an Engine with it.")
        return self._source

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Load the model if it was named, and compare the vocabularies."""
        if not isinstance(self._source, Target):
            self._source = registry.load(registry.TARGETS, "hf").load(
                self._source,
                dtype=self._dtype,
                device=str(target.spec.device),
                slots=target.spec.slots,
                max_len=None,
            )
        spec = self.model.spec
        if spec.slots < target.spec.slots:
            raise CompositionError(
                f"draft_model holds {spec.slots} slots; the target has {target.spec.slots}. Load it with as many."
            )
        own = getattr(self.model, "tokenizer", None)
        if codec is not None and own is not None:
            compare_vocabularies(codec.vocabulary(), codec_of(own).vocabulary())
        self._vocab = target.spec.vocab_size
        shape = (spec.slots, max(spec.max_len, target.spec.max_len) + target.spec.max_budget + 2)
        self._log = torch.full(shape, -1, dtype=torch.int64, device=spec.device)
        self._written = torch.full_like(self._log, -2)
        self._cached = torch.zeros(spec.slots, dtype=torch.int64, device=spec.device)
        self._behind, self._rows = 1, 0

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Prefill the prompts, as far as the model's positions reach."""
        limit = self.model.spec.max_len
        prompts = [request.ids[:limit].clamp(max=self.model.spec.vocab_size - 1) for request in requests]
        self.model.open(slots, prompts)
        self._rows += len(requests)
        for slot, request, prompt in zip(slots.tolist(), requests, prompts, strict=True):
            self._log[slot] = -1
            self._log[slot, : len(request.ids)] = request.ids
            self._written[slot] = -2
            self._cached[slot] = len(prompt)

    def propose(self, ctx: Context) -> Draft:
        """A chain of the model's own tokens; rows whose text outgrew the model get none."""
        steps = min(ctx.budget - 1, self.model.spec.max_len - 1)
        counts = (self.model.spec.max_len - ctx.lengths + 1).clamp(0, steps)
        if steps < 1 or _host_says(~(counts > 0).any()):
            return Draft.empty(ctx.anchor)
        # Only the first call since a commit is sure to be about what was committed.
        ahead = ctx.budget if self._calls else 0
        self._calls += 1
        logits, whole = self._catch_up(ctx, self._lag(torch.where(counts > 0, ctx.lengths, 0), ctx.slots, ahead))
        tokens: list[Tensor] = []
        q: list[Tensor] = []
        for step in range(steps):
            if step:
                logits = self._step(ctx, tokens[-1], step, whole)
            position = ctx.lengths + step
            stream = noise.DRAFT if ctx.wants_q else noise.SAMPLE
            tokens.append(ctx.sampling.pick(logits[:, None], position[:, None], stream)[:, 0])
            if ctx.wants_q:
                q.append(self._padded(ctx.sampling.distribution(logits[:, None])[:, 0]))
        return Draft.chain(ctx.anchor, torch.stack(tokens, 1), torch.stack(q, 1) if q else None, counts=counts)

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Log what was kept; rows of the cache that hold just that become its cached rows."""
        row = torch.cat([ctx.anchor[:, None], verdict.emitted(draft)], 1)
        index = torch.arange(row.shape[1], device=row.device)
        at = ctx.lengths[:, None] - 1 + index
        self._log[ctx.slots[:, None], at] = row
        goal = ctx.lengths + verdict.accepted
        cached = self._cached[ctx.slots]
        span = self._lag(goal, ctx.slots, draft.nodes)
        reach = cached[:, None] + torch.arange(span, device=row.device)
        reach = reach.clamp(max=self._log.shape[1] - 1)
        slots = ctx.slots[:, None]
        agree = (self._log[slots, reach] == self._written[slots, reach]) & (reach < goal[:, None])
        self._cached[ctx.slots] = cached + agree.to(torch.int64).cumprod(1).sum(1)
        if draft.nodes == 1:
            self._behind += 1
        elif len(ctx.lengths) == self._rows:
            # Drafts for other futures may have taken the place of this one's cached rows.
            self._behind = 2 if self._calls == 1 else draft.nodes + 1
        self._calls = 0

    def close(self, slots: Tensor) -> None:
        """Free the model's slots."""
        self.model.close(slots)
        self._rows -= len(slots)
        self._cached[slots] = 0

    def _lag(self, lengths: Tensor, slots: Tensor, ahead: int) -> int:
        """How many tokens of texts of these lengths the model has not seen, at most and at least 1.

        Read where that is free. On a device it is a bound, which holds for texts that are `ahead` of what was
        committed; it shrinks only in rounds that every open row took part in.
        """
        behind = lengths - self._cached[slots]
        return max(1, int(behind.max())) if _on_host(behind) else self._behind + ahead

    def _catch_up(self, ctx: Context, left: int) -> tuple[Tensor, Tensor]:
        """Feed what the model has not seen, the anchor last; the logits after it [R, V]. Writes scratch rows.

        left: tokens that are fed to each row, at most. Beside the logits: which rows that was enough for [R] bool.
        """
        cached = self._cached[ctx.slots]
        history = self._overlaid(ctx)
        last = torch.zeros_like(ctx.lengths)
        logits = torch.zeros(len(last), 0)
        chunk = self.model.spec.max_budget
        while left > 0:
            nodes = min(left, chunk)
            index = torch.arange(nodes, device=last.device)
            here = (ctx.lengths - cached).clamp(1, nodes)
            start = torch.minimum(cached, ctx.lengths - 1)
            tokens = history.gather(1, start[:, None] + index)
            fed = self._forward(ctx, tokens, start, here)
            logits = fed.gather(1, (here - 1)[:, None, None].expand(-1, -1, fed.shape[-1]))[:, 0]
            cached = cached + here
            left -= nodes
        return logits, cached >= ctx.lengths

    def _step(self, ctx: Context, token: Tensor, step: int, whole: Tensor) -> Tensor:
        """Feed one drafted token; the logits after it [R, V]. Writes a scratch row, never trusted unless `whole`."""
        start = ctx.lengths + step - 1
        return self._forward(ctx, token[:, None], start, torch.ones_like(start), whole)[:, 0]

    def _forward(
        self, ctx: Context, tokens: Tensor, start: Tensor, counts: Tensor, whole: Tensor | None = None
    ) -> Tensor:
        """Score tokens [R, N] at positions from start [R] on; counts [R] of them are real. Logits [R, N, V']."""
        spec = self.model.spec
        index = torch.arange(tokens.shape[1], device=tokens.device)
        real = index < counts[:, None]
        # Texts that outgrew the model are not drafted for; their rows are moved to where writing harms nothing.
        safe = start.clamp(max=spec.max_len - 1)
        fed = torch.where(real, tokens, 0).clamp(0, spec.vocab_size - 1)
        draft = Draft.chain(fed[:, 0], fed[:, 1:], counts=counts - 1)
        at = safe[:, None] + index
        sound = start == safe if whole is None else whole & (start == safe)
        self._written[ctx.slots[:, None], at] = torch.where(real & sound[:, None], tokens, -2)
        end = at[:, -1:] + 1
        self._written[ctx.slots[:, None], end] = -2
        logits = self.model.score(ctx.slots, safe + 1, draft).logits
        return logits[..., : self._vocab]

    def _overlaid(self, ctx: Context) -> Tensor:
        """Each row's log [R, L] with the tail laid over it."""
        window = ctx.tail.shape[1]
        at = ctx.lengths[:, None] - window + torch.arange(window, device=ctx.tail.device)
        # Column 0 takes what lies before the start of a short text, and is cut off again.
        padded = torch.nn.functional.pad(self._log[ctx.slots], (1, 0))
        return padded.scatter(1, torch.where(at < 0, 0, at + 1), ctx.tail)[:, 1:]

    def _padded(self, q: Tensor) -> Tensor:
        """Q over the target's vocabulary."""
        return torch.nn.functional.pad(q, (0, self._vocab - q.shape[-1]))


def _host_says(flag: Tensor) -> bool:
    """The flag where reading it is free; false on a device."""
    return _on_host(flag) and bool(flag)


def _on_host(x: Tensor) -> bool:
    """Real memory of a CPU, where reading a value stalls nothing."""
    return type(x) is Tensor and x.device.type == "cpu"


def compare_vocabularies(target: dict[str, int], draft: dict[str, int]) -> None:
    """Raises CompositionError unless every id that both know has one spelling.

    Sizes may differ: a padded or shortened vocabulary drafts what it shares.
    """
    if not target or not draft:
        return
    spelled = {i: token for token, i in target.items()}
    for token, i in sorted(draft.items(), key=lambda item: item[1]):
        if i in spelled and spelled[i] != token:
            raise CompositionError(
                f"draft_model has another vocabulary: token {i} is {token!r} there and {spelled[i]!r} in the "
                "target. Use a draft model with the target's tokenizer."
            )
