"""A small transformer with a cache, a tree mask and random weights: exact, quick, and needing no download."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec import tree
from specdec.attention import additive, attend, visible
from specdec.kvcache import KVCache
from specdec.state import Rows, StateIdentity
from specdec.target import Target, TargetSpec
from specdec.types import Draft, Scores, Verdict


class TinyTarget(Target):
    """Two layers over slabs of keys and values; float64, so that kernels of any width agree on every token.

    Every layer can be tapped. The weights follow from `seed`; `sharpness` scales the logits.
    """

    def __init__(
        self,
        vocab_size: int = 37,
        *,
        slots: int = 8,
        max_len: int = 256,
        max_budget: int = 64,
        eos_ids: Sequence[int] = (),
        taps: Sequence[int] = (),
        seed: int = 0,
        sharpness: float = 6.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        hidden, self._heads, layers = 32, 4, 2
        self.identity = StateIdentity(f"tiny-{vocab_size}-{max_len}-{max_budget}-{seed}-{sharpness}", str(dtype))
        self.spec = TargetSpec(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_layers=layers,
            max_len=max_len,
            slots=slots,
            max_budget=max_budget,
            eos_ids=tuple(eos_ids),
            dtype=dtype,
            taps=tuple(taps),
            name="tiny",
        )
        make = torch.Generator().manual_seed(seed)

        def weight(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(*shape, generator=make, dtype=torch.float64).mul(scale).to(dtype)

        self._embed = weight(vocab_size, hidden)
        self._where = weight(max_len + max_budget, hidden, scale=0.5)
        self._qkv = [weight(3 * hidden, hidden, scale=hidden**-0.5) for _ in range(layers)]
        self._mlp = [weight(2, hidden, hidden, scale=hidden**-0.5) for _ in range(layers)]
        self._head = weight(vocab_size, hidden, scale=sharpness / hidden)
        self.cache = KVCache(
            layers=layers,
            slots=slots,
            heads=self._heads,
            rows=max_len + max_budget,
            k_dim=hidden // self._heads,
            dtype=dtype,
        )

    def open(self, slots: Tensor, prompts: Sequence[Tensor]) -> Scores:
        """Prefill row by row."""
        return self.resume(slots, prompts, [0] * len(prompts))

    def resume(self, slots: Tensor, prompts: Sequence[Tensor], cached: Sequence[int]) -> Scores:
        """Prefill row by row what is not in place."""
        parts = [self._prefill(slots[b : b + 1], prompt, cached[b]) for b, prompt in enumerate(prompts)]
        hidden = None if parts[0].hidden is None else torch.cat([p.hidden for p in parts if p.hidden is not None])
        return Scores(torch.cat([p.logits for p in parts]), hidden)

    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        """One forward of every node under the tree mask."""
        return self._forward(slots, lengths - 1, draft.tokens, draft.ancestors, draft.depth)

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """Compact the accepted path."""
        if not draft.linear:
            self.cache.keep(slots, lengths - 1, verdict.path)

    def close(self, slots: Tensor) -> None:
        """Overwrite the slots' rows, so that a reader of stale rows is found out."""
        self.cache.k[:, slots] = 1e3
        self.cache.v[:, slots] = 1e3

    def take_rows(self, slot: int, start: int, stop: int) -> Rows:
        """Copies of the slot's rows."""
        return self.cache.take(slot, start, stop)

    def put_rows(self, slot: int, start: int, rows: Rows) -> None:
        """Write rows into the slot."""
        self.cache.put(slot, start, *rows)

    def _prefill(self, slot: Tensor, prompt: Tensor, cached: int) -> Scores:
        prompt = prompt[cached:]
        parents = (torch.arange(len(prompt)) - 1)[None]
        start = torch.full((1,), cached)
        depth = torch.arange(len(prompt))[None]
        scores = self._forward(slot, start, prompt[None], tree.chain_ancestors(parents), depth)
        return Scores(scores.logits[:, -1:], None if scores.hidden is None else scores.hidden[:, -1:])

    def _forward(self, slots: Tensor, start: Tensor, tokens: Tensor, reach: Tensor, depth: Tensor) -> Scores:
        rows, n = tokens.shape
        place = self.cache.place(slots, start, n)
        bias = additive(visible(place, reach, depth), self._embed.dtype)
        x = self._embed[tokens] + self._where[start[:, None] + depth]
        taps: list[Tensor] = []
        for layer, (qkv, mlp) in enumerate(zip(self._qkv, self._mlp, strict=True)):
            q, k, v = (x @ qkv.T).view(rows, n, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
            self.cache.write(layer, place, k, v)
            seen = attend(q, *self.cache.view(layer, place), bias, q.shape[-1] ** -0.5)
            x = x + seen.transpose(1, 2).reshape(rows, n, -1)
            x = x + torch.tanh(x @ mlp[0]) @ mlp[1]
            if layer in self.spec.taps:
                taps.append(x)
        logits = (x @ self._head.T).to(torch.float32)
        return Scores(logits, torch.cat(taps, -1) if taps else None)
