"""Repetition, presence and frequency penalties over prompt, output and drafted path."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.params import SamplingParams
from specdec.shaping.constraint import Constraint, Nodes


class Penalties(Constraint):
    """Counts what was emitted once, and what a path would add for each node.

    Repetition (Keskar et al. 2019, arXiv 1909.05858) looks at prompt and output, presence and frequency at the output.
    """

    def __init__(self, params: SamplingParams, prompt: Tensor, vocab_size: int) -> None:
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._prompt = torch.zeros(vocab_size, dtype=torch.bool, device=prompt.device)
        self._prompt[prompt] = True
        self._counts = torch.zeros(vocab_size, device=prompt.device)

    def apply(self, logits: Tensor, nodes: Nodes) -> None:
        """Penalise each node's logits by its own history."""
        counts = self._counts.repeat(logits.shape[0], 1)
        above = nodes.ancestors.clone()
        above[:, 0] = False
        above &= (nodes.parents >= 0)[:, None]
        counts.scatter_add_(1, nodes.tokens.clamp(min=0).expand_as(above), above.to(counts.dtype))
        emitted = counts > 0
        if self._repetition != 1.0:
            seen = emitted | self._prompt
            worse = torch.where(logits > 0, logits / self._repetition, logits * self._repetition)
            logits.copy_(torch.where(seen, worse, logits))
        logits -= self._frequency * counts + self._presence * emitted

    def advance(self, tokens: list[int]) -> None:
        """Count the emitted tokens."""
        index = torch.tensor(tokens, dtype=torch.int64, device=self._counts.device)
        self._counts.index_add_(0, index, torch.ones(len(tokens), device=self._counts.device))
