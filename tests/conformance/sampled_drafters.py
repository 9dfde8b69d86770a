"""Drafters that draw their tokens and state what they drew from; and one that states something else."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec import noise
from specdec.drafter import Drafter, DrafterSpec
from specdec.types import Context, Draft


class Drawn(Drafter):
    """Trees of `width` children drawn without replacement, each heading a chain; q is exact unless `misreport`.

    table [V, V]: what is drawn from, by the token before.
    """

    spec = DrafterSpec(trees=True)

    def __init__(self, table: Tensor, *, width: int, depth: int, misreport: bool = False) -> None:
        self.table, self.width, self.depth, self.misreport = table, width, depth, misreport
        if width == 1:
            self.spec = DrafterSpec()

    def propose(self, ctx: Context) -> Draft:
        """The first children one by one, then a step of every branch at a time."""
        tokens, parents, q = [ctx.anchor], [-1], [torch.zeros_like(self.table[ctx.anchor])]
        left = self.table[ctx.anchor]
        heads = []
        for _ in range(self.width):
            left = left / left.sum(-1, keepdim=True)
            token = self._draw(ctx, left, len(tokens))
            heads.append(len(tokens))
            tokens, parents, q = [*tokens, token], [*parents, 0], [*q, left]
            left = left.scatter(1, token[:, None], 0.0)
        for _ in range(self.depth - 1):
            for at, head in enumerate(heads):
                row = self.table[tokens[head]]
                heads[at] = len(tokens)
                tokens, parents, q = [*tokens, self._draw(ctx, row, len(tokens))], [*parents, head], [*q, row]
        stated = torch.stack(q, 1)
        if self.misreport:
            stated = torch.full_like(stated, 1 / stated.shape[-1])
        lines = torch.tensor(parents).expand(len(ctx.anchor), -1)
        return Draft(torch.stack(tokens, 1), lines, stated, linear=self.width == 1)

    def _draw(self, ctx: Context, weights: Tensor, node: int) -> Tensor:
        ids = torch.arange(weights.shape[-1])
        return (weights.log() + noise.gumbel(ctx.sampling.seed, ctx.lengths * 64 + node, ids, noise.DRAFT)).argmax(-1)
