"""What every slot has said so far, on the device; the host's own record trails it by a round under overlap."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.types import Draft, Verdict


class TextLog:
    """Tokens of each slot, prompt and output [S, L], where its output begins, and where it must end.

    Slots are rows of the server's request pool: one request holds one at a time, so a new request simply overwrites.
    """

    def __init__(self, slots: int, max_len: int, width: int, device: torch.device | str) -> None:
        self._tokens = torch.zeros(slots, max_len + width + 1, dtype=torch.int64, device=device)
        self._prompt = torch.zeros(slots, dtype=torch.int64, device=device)
        self._limit = torch.zeros(slots, dtype=torch.int64, device=device)
        self._max_len = max_len

    def open(self, slot: int, ids: Tensor, prompt: int, new_tokens: int) -> None:
        """A request begins with ids [T]: its prompt and, if it was set back, its output so far.

        prompt: tokens of the prompt alone; new_tokens: how many it may emit in all.
        """
        self._tokens[slot, : len(ids)] = ids
        self._prompt[slot] = prompt
        self._limit[slot] = min(prompt + new_tokens, self._max_len)

    def append(self, slots: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """Write tokens [B, K] after the first lengths [B] ones; what is past the end of a text is overwritten later."""
        at = lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        self._tokens[slots[:, None], at.clamp(max=self._tokens.shape[1] - 1)] = tokens.clamp(min=0)

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """Append what a round emitted; lengths count the anchor."""
        self.append(slots, lengths, verdict.emitted(draft))

    def tail(self, slots: Tensor, lengths: Tensor, window: int) -> Tensor:
        """The last `window` of the first lengths [B] tokens, right aligned, -1 before the start: [B, W]."""
        at = lengths[:, None] - window + torch.arange(window, device=lengths.device)
        return torch.where(at >= 0, self._tokens[slots[:, None], at.clamp(min=0)], -1)

    def room(self, slots: Tensor, lengths: Tensor) -> Tensor:
        """Draft tokens that can still count: [B]; the token after the last of them is not one."""
        return (self._limit[slots] - lengths - 1).clamp(min=0)

    def emitted(self, slots: Tensor, lengths: Tensor) -> Tensor:
        """Tokens of the output so far, the anchor among them: [B]."""
        return lengths - self._prompt[slots]

    def counts(self, slots: Tensor, lengths: Tensor, vocab_size: int, longest: int | None) -> Tensor:
        """How often each token stands in the output so far: [B, V] float32.

        longest: the largest of `lengths` where the host knows it, so that less is read.
        """
        text = self._tokens[slots, :longest]
        at = torch.arange(text.shape[1], device=text.device)
        said = (at >= self._prompt[slots, None]) & (at < lengths[:, None])
        counts = torch.zeros(len(slots), vocab_size, device=text.device)
        return counts.scatter_add_(1, text.clamp(0, vocab_size - 1), said.float())

    def output(self, slot: int, length: int) -> list[int]:
        """The output of one slot so far. Syncs with the host."""
        return [int(t) for t in self._tokens[slot, int(self._prompt[slot]) : length].tolist()]
