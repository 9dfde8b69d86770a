"""Biases and bans: logit_bias, min_tokens, bad_words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specdec.shaping.constraint import Constraint, Nodes


class LogitBias(Constraint):
    """Adds a number to some logits."""

    def __init__(self, bias: Mapping[int, float], device: torch.device) -> None:
        self._ids = torch.tensor(list(bias), dtype=torch.int64, device=device)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32, device=device)

    def apply(self, logits: Tensor, nodes: Nodes) -> None:
        """Add the bias to every node."""
        logits.index_add_(1, self._ids, self._values.expand(logits.shape[0], -1))


class MinTokens(Constraint):
    """Bans what would end the output before it has `min_tokens` tokens."""

    def __init__(self, min_tokens: int, ends: Sequence[int], device: torch.device) -> None:
        self._left = min_tokens
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64, device=device)

    def apply(self, logits: Tensor, nodes: Nodes) -> None:
        """Ban the ends at nodes whose path leaves the output shorter than `min_tokens`."""
        if self._left <= 0 or not len(self._ends):
            return
        early = nodes.depth < self._left
        logits[:, self._ends] = logits[:, self._ends].masked_fill(early[:, None], -torch.inf)

    def advance(self, tokens: list[int]) -> None:
        """Count the emitted tokens."""
        self._left -= len(tokens)


class BadWords(Constraint):
    """Bans the last token of a sequence wherever the tokens before it stand."""

    def __init__(self, words: Sequence[Sequence[int]], prompt: Sequence[int]) -> None:
        self._words = [tuple(word) for word in words]
        self._reach = max((len(word) - 1 for word in self._words), default=0)
        self._tail = list(prompt)[-self._reach :] if self._reach else []

    def apply(self, logits: Tensor, nodes: Nodes) -> None:
        """Ban at each node what would complete a word there."""
        for i in nodes.used:
            history = tuple(self._tail + nodes.paths[i])
            banned = [word[-1] for word in self._words if self._completes(word, history)]
            if banned:
                logits[i, banned] = -torch.inf

    def advance(self, tokens: list[int]) -> None:
        """Remember as much as a word can need."""
        if self._reach:
            self._tail = (self._tail + tokens)[-self._reach :]

    @staticmethod
    def _completes(word: tuple[int, ...], history: tuple[int, ...]) -> bool:
        before = word[:-1]
        return not before or history[-len(before) :] == before
