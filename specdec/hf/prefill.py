"""How prompts become forwards: short ones side by side, long ones chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specdec.hf.backbone import Step
from specdec.kvcache import Place


def forwards(
    slots: Tensor, prompts: Sequence[Tensor], cached: Sequence[int], *, chunk: int, vocab_size: int
) -> Iterator[tuple[list[int], Step]]:
    """The forwards that fill the slots, each with the rows of `prompts` it serves.

    cached: tokens of each prompt whose rows are in place; they are left out. No forward has more than `chunk` tokens.
    A prompt's last forward scores its last token.
    """
    names = slots.tolist()
    for start, rows in _groups([prompt.shape[0] for prompt in prompts], cached, chunk):
        lengths = [prompts[row].shape[0] - start for row in rows]
        tokens = torch.zeros(len(rows), max(lengths), dtype=torch.int64, device=slots.device)
        for i, row in enumerate(rows):
            tokens[i, : lengths[i]] = prompts[row][start:].clamp(0, vocab_size - 1)
        taken = [names[row] for row in rows]
        for offset in range(0, tokens.shape[1], chunk):
            part = tokens[:, offset : offset + chunk]
            last = torch.tensor(lengths, device=slots.device) - 1 - offset
            yield rows, _causal(part, taken, start + offset, last.clamp(max=part.shape[1] - 1))


def _groups(lengths: Sequence[int], cached: Sequence[int], chunk: int) -> list[tuple[int, list[int]]]:
    """Rows that share a forward, after the rows they have in place, which are as many for each of them."""
    groups: list[tuple[int, list[int]]] = []
    for start in sorted(set(cached)):
        rows = [row for row, count in enumerate(cached) if count == start]
        found = _similar([lengths[row] - start for row in rows], chunk)
        groups += [(start, [rows[i] for i in group]) for group in found]
    return groups


def _similar(lengths: Sequence[int], chunk: int) -> list[list[int]]:
    """Rows of similar length, padded to no more than `chunk` tokens together."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    groups: list[list[int]] = []
    for row in order:
        group = groups[-1] if groups else []
        fits = (len(group) + 1) * lengths[row] <= chunk
        if group and fits and lengths[row] <= 2 * lengths[group[0]]:
            group.append(row)
        else:
            groups.append([row])
    return groups


def _causal(tokens: Tensor, names: list[int], offset: int, last: Tensor) -> Step:
    """A chain of tokens [B, N] at `offset` in each of the slots `names`; what pads a row lands in its scratch rows."""
    rows, n = tokens.shape
    device = tokens.device
    depth = torch.arange(n, device=device).expand(rows, n)
    ancestors = torch.ones(n, n, dtype=torch.bool, device=device).tril_().expand(rows, n, n)
    consecutive = names == list(range(names[0], names[0] + rows))
    place = Place(
        torch.tensor(names, device=device),
        torch.full((rows,), offset, device=device),
        n,
        offset + n,
        names[0] if consecutive else None,
        offset,
    )
    return Step(tokens, depth + offset, place, ancestors, depth, last, causal=offset == 0)
