"""Log-probabilities of emitted tokens, under the target alone."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.types import TokenLogprob


def logprobs_of(logits: Tensor, tokens: list[int], top: int) -> list[TokenLogprob]:
    """One entry for each token; logits [K, V] as the target gave them, row j before token j. Syncs with the host."""
    table = logits[: len(tokens)].to(torch.float32).log_softmax(-1)
    index = torch.tensor(tokens, dtype=torch.int64, device=table.device)
    own = table.gather(1, index[:, None])[:, 0].tolist()
    best = table.topk(min(top, table.shape[1]), dim=-1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprob(token, value, dict(zip(ids, values, strict=True)))
        for token, value, (ids, values) in zip(tokens, own, rows, strict=True)
    ]
