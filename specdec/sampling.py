"""Sampling from logits row by row: temperature, top-k, top-p, min-p, and a draw keyed by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec import noise

if TYPE_CHECKING:
    from specdec.params import SamplingParams

_HEAD = 1024
_MARGIN = 1e-4  # above the rounding of a float32 sum over a vocabulary
# Temperatures beyond these draw the same as the bounds do, and their quotients would overflow.
_COLDEST, _HOTTEST = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """What the host knows of a batch's sampling; batches with one rule run the same code.

    greedy: every row has temperature 0. width: the largest top_k when every sampled row has one, else 0.
    limited: some row has a top_k. nucleus: some row has top_p < 1. floor: some row has min_p > 0.
    """

    greedy: bool = True
    width: int = 0
    limited: bool = False
    nucleus: bool = False
    floor: bool = False

    @property
    def filtered(self) -> bool:
        """Whether any row has a filter."""
        return self.width > 0 or self.limited or self.nucleus or self.floor


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """How each row draws a token from logits.

    temperature [B] float32 (0 is the argmax, lowest id on ties), top_k [B] int64 (0 is off), top_p [B] float32
    (1 is off), min_p [B] float32 (0 is off), seed [B] int64. Filters apply in that order, each on what the one
    before left, as transformers does.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    rule: SamplingRule = SamplingRule()

    @classmethod
    def of(cls, params: Sequence[SamplingParams], seeds: Sequence[int], device: torch.device | str = "cpu") -> Sampling:
        """One row for each of `params`; `seeds` are the resolved seeds."""
        sampled = [p for p in params if p.temperature > 0]
        tops = [p.top_k for p in sampled]
        rule = SamplingRule(
            greedy=not sampled,
            width=max(tops) if tops and min(tops) > 0 else 0,
            limited=any(k > 0 for k in tops),
            nucleus=any(p.top_p < 1 for p in sampled),
            floor=any(p.min_p > 0 for p in sampled),
        )

        def column(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            column([p.temperature for p in params], torch.float32),
            column([p.top_k for p in params], torch.int64),
            column([p.top_p for p in params], torch.float32),
            column([p.min_p for p in params], torch.float32),
            column(list(seeds), torch.int64),
            rule,
        )

    @classmethod
    def uniform(
        cls, rows: int, temperature: float = 0.0, seed: int = 0, device: torch.device | str = "cpu"
    ) -> Sampling:
        """`rows` rows with one temperature and no filter; row b has seed + b."""
        ones = torch.ones(rows, device=device)
        return cls(
            ones * temperature,
            torch.zeros(rows, dtype=torch.int64, device=device),
            ones,
            torch.zeros(rows, device=device),
            seed + torch.arange(rows, device=device),
            SamplingRule(greedy=temperature == 0),
        )

    def rows(self, index: Tensor) -> Sampling:
        """The rows named by `index` [R] int64; the rule stays that of the whole batch, which covers them."""
        return replace(
            self,
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            seed=self.seed[index],
        )

    def pick(self, logits: Tensor, positions: Tensor, stream: int = noise.SAMPLE) -> Tensor:
        """One token for each row and node: [B, N] int64.

        logits [B, N, V]; positions [B, N] int64, the index of the token that is drawn. The same (seed,
        position, logits) gives the same token in any batch.
        """
        best = logits.argmax(-1)
        if self.rule.greedy:
            return best
        scaled = logits / self._temperature
        if self.rule.filtered:
            drawn = self._pick_filtered(scaled, positions, stream)
        else:
            drawn = self._pick_any(scaled, positions, stream)
        return torch.where(self.temperature[:, None] > 0, drawn, best)

    def distribution(self, logits: Tensor) -> Tensor:
        """What `pick` draws from: [B, N, V] float32, rows sum to 1; one-hot where temperature is 0."""
        greedy = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        if self.rule.greedy:
            return greedy
        scaled = logits / self._temperature
        if self.rule.filtered:
            values, ids = self._filtered(scaled)
            scaled = torch.full_like(scaled, -torch.inf).scatter_(-1, ids, values)
        return torch.where(self.temperature[:, None, None] > 0, scaled.softmax(-1), greedy)

    @property
    def _temperature(self) -> Tensor:
        return torch.where(self.temperature > 0, self.temperature.clamp(_COLDEST, _HOTTEST), 1.0)[:, None, None]

    def _pick_any(self, scaled: Tensor, positions: Tensor, stream: int) -> Tensor:
        ids = torch.arange(scaled.shape[-1], device=scaled.device)
        return (scaled + noise.gumbel(self.seed[:, None], positions, ids, stream)).argmax(-1)

    def _pick_filtered(self, scaled: Tensor, positions: Tensor, stream: int) -> Tensor:
        values, ids = self._filtered(scaled)
        race = values + noise.gumbel(self.seed[:, None], positions, ids, stream)
        return ids.gather(-1, race.argmax(-1, keepdim=True))[..., 0]

    def _filtered(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates best first, -inf where a filter dropped them: values and ids [B, N, K]."""
        values, ids = self._candidates(scaled)
        rank = torch.arange(values.shape[-1], device=values.device)
        top_k = torch.where(self.top_k > 0, self.top_k, scaled.shape[-1])[:, None, None]
        values = values.masked_fill(rank >= top_k, -torch.inf)
        if self.rule.nucleus:
            # Sums run over a prefix in order, so the cut is the same however many candidates follow it.
            share = scaled.softmax(-1).gather(-1, ids).masked_fill(rank >= top_k, 0.0)
            total = share.cumsum(-1)
            top_p = self.top_p[:, None, None]
            limit = top_p * torch.where(self.top_k[:, None, None] > 0, total[..., -1:], 1.0)
            drop = (total - share >= limit) & (top_p < 1) & (rank > 0)
            values = values.masked_fill(drop, -torch.inf)
        if self.rule.floor:
            floor = values[..., :1] + self.min_p[:, None, None].log()
            values = values.masked_fill(values < floor, -torch.inf)
        return values, ids

    def _candidates(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """As many of the best tokens as the filters can keep, sorted, the lowest id first on ties."""
        vocab = scaled.shape[-1]
        if scaled.dtype == torch.float32:
            if self.rule.width:
                return _best(scaled, min(self.rule.width, vocab))
            if _on_host(scaled) and vocab > _HEAD:
                values, ids = _best(scaled, _HEAD)
                if self._covered(scaled, values):
                    return values, ids
        full = scaled.sort(dim=-1, descending=True, stable=True)
        return full.values, full.indices

    def _covered(self, scaled: Tensor, head: Tensor) -> bool:
        """Whether the head holds all that any filter can keep. Reads a value: for the host only."""
        mass = (head.logsumexp(-1) - scaled.logsumexp(-1)).exp()
        k = (self.top_k[:, None] > 0) & (self.top_k[:, None] <= head.shape[-1])
        p = (self.top_k[:, None] == 0) & (self.top_p[:, None] < 1) & (mass > self.top_p[:, None] + _MARGIN)
        floor = head[..., 0] + self.min_p[:, None].log()
        m = (self.top_k[:, None] == 0) & (self.min_p[:, None] > 0) & (head[..., -1] < floor)
        return bool((k | p | m | (self.temperature[:, None] == 0)).all())


def _best(scaled: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of float32 scaled [..., V] and their ids, in the order of a stable sort.

    `topk` alone breaks ties by chance, so that a row's candidates would depend on k, and k on the other rows. The
    key holds the float's bits in integer order and, below them, the id.
    """
    bits = (scaled + 0.0).view(torch.int32)  # + 0.0 leaves one zero
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = order.to(torch.int64).mul_(1 << 32).sub_(torch.arange(scaled.shape[-1], device=scaled.device))
    ids = key.topk(k, dim=-1).indices
    return scaled.gather(-1, ids), ids


def _on_host(x: Tensor) -> bool:
    """Real memory of a CPU: reading a value there stalls nothing and is never captured."""
    return type(x) is Tensor and x.device.type == "cpu"
