"""From a request to rows, and from rows to their first tokens."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdec.engine.logprobs import logprobs_of
from specdec.engine.parts import Parts
from specdec.engine.row import Row
from specdec.engine.stops import Stopper
from specdec.engine.walk import processed
from specdec.errors import OptionError
from specdec.sampling import Sampling
from specdec.shaping import Nodes, RowShaper
from specdec.types import Draft, Request, TokenLogprob


def make_rows(parts: Parts, request: Request, first_order: int) -> list[Row]:
    """One row for each of the request's `n` completions; raises for what cannot be served.

    Completion i has seed + i (mod 2**63), so the first one is what n == 1 gives.
    """
    params = request.params
    _check_state(request)
    ids = token_ids(parts, request.prompt)
    parts.check_request(params, len(ids))
    if odd := [mark for mark in request.marks if not 0 < mark <= len(ids)]:
        raise OptionError(f"marks holds {odd[0]}; the prompt has {len(ids)} tokens. Give counts from 1 to that.")
    seed = secrets.randbits(62) if params.seed is None else params.seed
    prompt = torch.tensor(ids, dtype=torch.int64, device=parts.target.spec.device)
    base = request.id or f"request-{first_order}"
    return [
        _row(
            parts,
            replace(request, prompt=prompt, id=base if params.n == 1 else f"{base}.{i}"),
            ids,
            seed if i == 0 else (seed + i) % (1 << 63),
            index=i,
            order=first_order + i,
        )
        for i in range(params.n)
    ]


def first_tokens(parts: Parts, rows: Sequence[Row]) -> list[int]:
    """Prefill the rows' slots and draw what follows each prompt; writes target and drafter state."""
    device = parts.target.spec.device
    slots = torch.tensor([row.slot for row in rows], dtype=torch.int64, device=device)
    prompts = [row.request.ids for row in rows]
    scores = parts.target.open(slots, prompts) if parts.keeper is None else parts.keeper.open(parts.target, rows)
    parts.drafter.open(slots, [row.request for row in rows], scores)
    logits = scores.logits.clone()
    draft = Draft.empty(torch.stack([prompt[-1] for prompt in prompts]))
    for b, row in enumerate(rows):
        row.shaper.apply(logits[b], Nodes.of(draft, b))
        if row.request.params.logits_processors:
            logits[b, 0] = processed(row, logits[b, 0])
    lengths = torch.tensor([len(row.ids) for row in rows], dtype=torch.int64, device=device)
    sampling = Sampling.of([row.request.params for row in rows], [row.seed for row in rows], device)
    tokens = [int(t) for t in sampling.pick(logits, lengths[:, None])[:, 0].tolist()]
    for b, row in enumerate(rows):
        if row.logprobs is not None:
            top = row.request.params.logprobs or 0
            row.logprobs += logprobs_of(scores.logits[b], [tokens[b]], top)
    return tokens


def _row(parts: Parts, request: Request, ids: list[int], seed: int, *, index: int, order: int) -> Row:
    params, spec = request.params, parts.target.spec
    stopper = Stopper(
        params,
        ids,
        eos_ids=spec.eos_ids,
        max_len=spec.max_len,
        stream=None if parts.codec is None else parts.codec.stream(),
    )
    if stopper.limit <= 0:
        stopper.finish("length")
    shaper = RowShaper.of(
        params,
        request.ids,
        ids,
        vocab_size=spec.vocab_size,
        ends=sorted(stopper.ends),
        codec=parts.codec,
        grammars=parts.grammars,
    )
    logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
    return Row(request, ids, seed, stopper, shaper, index=index, order=order, logprobs=logprobs)


def _check_state(request: Request) -> None:
    """Raises OptionError for names and marks that cannot be what they should be."""
    for name in ("session", "owner"):
        if not isinstance(getattr(request, name), str | None):
            raise OptionError(f"{name} is a string or None; found {getattr(request, name)!r}.")
    if not isinstance(request.call, str):
        raise OptionError(f"call is a string; found {request.call!r}.")
    for mark in request.marks:
        if type(mark) is not int:
            raise OptionError(f"marks holds {mark!r}; it holds whole numbers of prompt tokens.")


def token_ids(parts: Parts, prompt: str | Sequence[int] | Tensor) -> list[int]:
    """The prompt's ids on the host; raises OptionError for what is none."""
    vocab = parts.target.spec.vocab_size
    if isinstance(prompt, str):
        if parts.codec is None:
            raise OptionError(
                f"the prompt is text ({prompt[:40]!r}); this engine has no tokenizer. "
                "Give token ids, or a tokenizer to the engine."
            )
        if not prompt:
            return []
        return parts.codec.encode(prompt)
    if isinstance(prompt, Tensor) and prompt.ndim != 1:
        raise OptionError(f"the prompt is a tensor of {list(prompt.shape)}; ids have one dimension. Give one row.")
    if not isinstance(prompt, Tensor | Sequence):
        raise OptionError(f"a prompt is a text or a list of token ids; found {prompt!r}. Give a list of prompts.")
    values: list[Any] = prompt.tolist() if isinstance(prompt, Tensor) else list(prompt)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab:
            raise OptionError(f"the prompt holds {value!r}; token ids are whole numbers from 0 to {vocab - 1}.")
    return values
