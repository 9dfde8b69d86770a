"""Prompt look-up: continue the text as it went on the last time its end stood there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.drafter import Drafter, DrafterSpec
from specdec.errors import OptionError
from specdec.target import Target
from specdec.text import TextCodec
from specdec.types import Context, Draft, Request, Scores, Verdict

_WINDOW = 32


class Ngram(Drafter):
    """Proposes what followed the longest, then latest, earlier occurrence of the text's end (Saxena 2023).

    A continuation that reaches the end of the text goes on with its own beginning, since text that repeats has a
    period. State: a log of each slot's tokens [S, max_len]. One pass over the log for each of `max_match` tokens;
    nothing syncs with the host on a device.

    max_match, min_match   tokens compared at most, and at least for a proposal
    stretch                tokens proposed for each token that matched: the longer the match, the further it is trusted
    """

    spec = DrafterSpec(window=_WINDOW, max_budget=16)

    def __init__(self, max_match: int = 6, min_match: int = 1, stretch: int = 4) -> None:
        if not 1 <= min_match <= max_match <= _WINDOW:
            raise OptionError(
                f"ngram needs 1 <= min_match <= max_match <= {_WINDOW}; found {min_match!r} and {max_match!r}."
            )
        if stretch < 1:
            raise OptionError(f"ngram needs stretch >= 1; found {stretch!r}.")
        self.max_match, self.min_match, self.stretch = max_match, min_match, stretch
        self._log = torch.empty(0, 0, dtype=torch.int64)

    def attach(self, target: Target, codec: TextCodec | None) -> None:
        """Make room for the target's slots and positions."""
        shape = (target.spec.slots, target.spec.max_len + target.spec.max_budget + 1)
        self._log = torch.full(shape, -1, dtype=torch.int64, device=target.spec.device)

    def open(self, slots: Tensor, requests: Sequence[Request], scores: Scores) -> None:
        """Log the prompts."""
        for slot, request in zip(slots.tolist(), requests, strict=True):
            self._log[slot] = -1
            self._log[slot, : len(request.ids)] = request.ids

    def propose(self, ctx: Context) -> Draft:
        """One chain a row; an empty one where nothing matches."""
        history = self._history(ctx)
        start, matched = self._latest_longest(history, ctx)
        counts = torch.where(matched >= self.min_match, self.stretch * matched, 0).clamp(max=ctx.budget - 1)
        longest = int(counts.max()) if _on_host(history) else ctx.budget - 1
        period = (ctx.lengths - start).clamp(min=1)
        steps = torch.arange(longest, device=history.device)
        at = start[:, None] + steps % period[:, None]
        tokens = history.gather(1, at.clamp(0, history.shape[1] - 1))
        return Draft.chain(ctx.anchor, tokens, counts=counts)

    def commit(self, ctx: Context, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Log the anchor and what was kept after it."""
        row = torch.cat([ctx.anchor[:, None], verdict.emitted(draft)], 1)
        at = ctx.lengths[:, None] - 1 + torch.arange(row.shape[1], device=row.device)
        self._log[ctx.slots[:, None], at] = row

    def close(self, slots: Tensor) -> None:
        """Forget the slots' tokens."""
        self._log[slots] = -1

    def _history(self, ctx: Context) -> Tensor:
        """Each row's tokens [R, L], the tail laid over the log, -1 elsewhere; a copy."""
        longest = int(ctx.lengths.max()) if _on_host(ctx.lengths) else None
        history = self._log[ctx.slots, :longest]
        window = ctx.tail.shape[1]
        at = ctx.lengths[:, None] - window + torch.arange(window, device=history.device)
        before_start = at < 0
        padded = torch.nn.functional.pad(history, (1, 0), value=-1)
        padded = padded.scatter(1, torch.where(before_start, 0, at + 1), torch.where(before_start, -1, ctx.tail))
        return padded[:, 1:]

    def _latest_longest(self, history: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Where the best continuation starts [R], and how many tokens before it match the end of the text [R]."""
        length = history.shape[1]
        place = torch.arange(length, device=history.device)
        run = (place < ctx.lengths[:, None] - 1).expand(history.shape)
        matched = torch.zeros_like(history)
        for back in range(self.max_match):
            key = ctx.tail[:, -1 - back]
            earlier = torch.nn.functional.pad(history, (back, 0), value=-2)[:, :length]
            run = run & (earlier == key[:, None]) & (key >= 0)[:, None]
            matched = matched + run
        best = (matched * length + place * (matched > 0)).argmax(-1)
        return best + 1, matched.gather(1, best[:, None])[:, 0]


def _on_host(x: Tensor) -> bool:
    """Real memory of a CPU, where reading a value stalls nothing."""
    return type(x) is Tensor and x.device.type == "cpu"
