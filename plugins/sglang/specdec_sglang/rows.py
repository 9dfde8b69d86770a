"""What the requests of a batch asked for, as tensors: built when a batch changes, read every round."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.sampling import Sampling, SamplingRule

#: The server's value for "no top_k".
NO_TOP_K = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """top_k [B], top_p [B], min_p [B]: cut from the sorted distribution at once, as the server's sampler does.

    Plain transformers filter one after another; the server takes the nucleus of the whole distribution.
    """

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def __call__(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """Logits [B, N, V] with -inf where a filter cuts; temperature [B], 0 rows are left alone."""
        scale = torch.where(temperature > 0, temperature, 1.0)[:, None, None]
        probs, ids = (logits / scale).softmax(-1).sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(probs.shape[-1], device=probs.device)
        cut = probs.cumsum(-1) - probs > self.top_p[:, None, None]
        cut |= rank >= self.top_k[:, None, None]
        cut |= probs < probs[..., :1] * self.min_p[:, None, None]
        cut &= (temperature > 0)[:, None, None]
        cut[..., 0] = False
        return logits.masked_fill(torch.zeros_like(cut).scatter(-1, ids, cut), -torch.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
    """What a request's own output does to its logits; columns of [B] float32, min_tokens [B] int64.

    stops [B, V] bool: tokens that may not come before min_tokens of output.
    """

    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    min_tokens: Tensor
    stops: Tensor

    def __call__(self, logits: Tensor, counts: Tensor, emitted: Tensor) -> Tensor:
        """Logits [B, N, V] after counts [B, N, V] of earlier output tokens, emitted [B, N] of them in all.

        Additive ones first, then the repetition penalty (Keskar et al. 2019, arXiv 1909.05858), as the server does.
        """
        seen = counts > 0
        logits = logits - self.frequency[:, None, None] * counts - self.presence[:, None, None] * seen
        early = (emitted < self.min_tokens[:, None])[..., None] & self.stops[:, None]
        logits = logits.masked_fill(early, -torch.inf)
        scale = torch.where(seen, self.repetition[:, None, None], 1.0)
        return torch.where(logits < 0, logits * scale, logits / scale)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The options of a batch's rows. filters, penalties and bias [B, V] are None where no row has any."""

    sampling: Sampling
    filters: Filters | None
    penalties: Penalties | None
    bias: Tensor | None

    @classmethod
    def of(cls, reqs: Sequence[Any], vocab_size: int, device: torch.device | str, salt: int) -> Rows:
        """Columns of the server's requests; salt: drawn once for the server, the same on all its ranks."""
        params = [req.sampling_params for req in reqs]

        def column(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

        # The server turns temperature 0 into top_k 1.
        temperature = [0.0 if p.top_k == 1 else p.temperature for p in params]
        rows = len(reqs)
        sampling = Sampling(
            column(temperature),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.ones(rows, device=device),
            torch.zeros(rows, device=device),
            column([seed_of(req, salt) for req in reqs], torch.int64),
            SamplingRule(greedy=not any(temperature)),
        )
        filters = Filters(
            column([p.top_k if p.top_k > 0 else NO_TOP_K for p in params], torch.int64),
            column([p.top_p for p in params]),
            column([p.min_p for p in params]),
        )
        filtered = any(
            t > 0 and (0 < p.top_k < NO_TOP_K or p.top_p < 1 or p.min_p > 0)
            for t, p in zip(temperature, params, strict=True)
        )
        penalties = (
            Penalties(
                column([p.repetition_penalty for p in params]),
                column([p.presence_penalty for p in params]),
                column([p.frequency_penalty for p in params]),
                column([p.min_new_tokens for p in params], torch.int64),
                _stops(reqs, vocab_size).to(device, non_blocking=True),
            )
            if any(map(_penalised, params))
            else None
        )
        biases = [p.logit_bias for p in params]
        return cls(sampling, filters if filtered else None, penalties, _bias(biases, vocab_size, device))


def seed_of(req: Any, salt: int) -> int:
    """The request's seed, else one that its id and the server's salt decide, so that all ranks agree."""
    given = req.sampling_params.sampling_seed
    if given is not None:
        return int(given)
    digest = hashlib.blake2b(f"{salt}/{req.rid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _penalised(params: Any) -> bool:
    off = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    return not off or params.min_new_tokens > 0


def _stops(reqs: Sequence[Any], vocab_size: int) -> Tensor:
    """Tokens that end each request [B, V] bool: its own stop tokens and the model's."""
    stops = torch.zeros(len(reqs), vocab_size, dtype=torch.bool)
    for row, req in enumerate(reqs):
        tokenizer = req.tokenizer
        own = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
        own |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
        own.add(getattr(tokenizer, "eos_token_id", None))
        stops[row, [token for token in own if token is not None and token < vocab_size]] = True
    return stops


def _bias(biases: Sequence[dict[str, float] | None], vocab_size: int, device: torch.device | str) -> Tensor | None:
    if not any(biases):
        return None
    table = torch.zeros(len(biases), vocab_size)
    for row, bias in enumerate(biases):
        for token, value in (bias or {}).items():
            table[row, int(token)] = value
    return table.to(device, non_blocking=True)
