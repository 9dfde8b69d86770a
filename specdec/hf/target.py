"""`HFTarget`: a transformers model as the model whose distribution is the answer.

Runs on a CPU, and is written for CUDA as well (no host sync inside `score`), where it has not been run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.errors import CapacityError, OptionError
from specdec.hf import load as loading
from specdec.hf import support
from specdec.hf.alias import Progress
from specdec.hf.backbone import Backbone, Step
from specdec.hf.capacity import check_memory
from specdec.hf.identity import identify
from specdec.hf.prefill import forwards
from specdec.hf.probe import Probe, probe, verify
from specdec.kvcache import KVCache
from specdec.state import Rows
from specdec.target import Target, TargetSpec
from specdec.types import Draft, Scores, Verdict

_BACKBONES = ("auto", "transformers", "fused")
_DEFAULT_MAX_LEN = 4096


class HFTarget(Target):
    """A decoder-only transformers model with full or sliding-window attention, over slabs of keys and values.

    model          a causal model; it is put in eval mode, and its own forward works as before
    tokenizer      its fast tokenizer, or None; kept for whoever needs text
    slots          sequences held at a time
    max_len        tokens a sequence may have; None is what the model has positions for, 4096 at most
    max_budget     nodes one `score` takes a row
    taps           layers whose output (the residual stream) `Scores.hidden` holds
    prefill_chunk  tokens one forward of `open` takes at most
    backbone       "fused" (the Llama shape, fewer and faster operators), "transformers" (any model, its own
                   modules), or "auto": fused where it fits
    keep_model     False takes the model apart while the fused backbone is built, so that weights exist once

    Raises UnsupportedModel if the model cannot be run exactly: also when, on a few tokens, its own forward says
    something else. Raises CapacityError if the slabs do not fit into memory, before they are reserved.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        slots: int = 8,
        max_len: int | None = None,
        max_budget: int = 64,
        taps: Sequence[int] = (),
        prefill_chunk: int = 2048,
        backbone: str = "auto",
        keep_model: bool = True,
        name: str = "",
    ) -> None:
        loading.require_transformers()
        for option, value in (("slots", slots), ("max_budget", max_budget), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise OptionError(f"{option} was set to {value!r}; it counts things and is at least 1. Raise it.")
        model.eval()
        support.check_model(model)
        max_len = _max_len(model.config, max_len)
        support.check_rope(model.config, max_len)
        layers = int(model.config.get_text_config().num_hidden_layers)
        taps = _taps(taps, layers)
        found = probe(model, max_len)
        self.tokenizer = tokenizer
        self.prefill_chunk = prefill_chunk
        self.spec = _spec(model, found, max_len, slots, max_budget, taps, name)
        rows = max_len + max_budget
        check_memory(found.shape, slots=slots, rows=rows, device=self.spec.device)
        self._shape = found.shape
        identity = identify(model, found.shape.dtype)  # before the model may be taken apart
        self._backbone = _backbone(model, backbone, max_len, taps, keep_model)
        self.identity = replace(identity, model=f"{identity.model}-{self._backbone.name}")
        self.cache = _slabs(found, slots, rows, self.spec.device)
        with torch.inference_mode():
            verify(self._backbone, self.cache, found, model.config)

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device = "cpu",
        progress: Progress | None = None,
        **options: Any,
    ) -> HFTarget:
        """A target from a local folder, a `.gguf` file or an alias (`smollm2`).

        dtype None keeps the one the model was saved in; "fp32", "bf16" and "fp16" are known. progress is called
        with what is being done and the share of it, while an alias is fetched. options: see the class. Writes
        an alias's converted model to the cache folder. Raises OptionError for an unknown name or dtype,
        MissingExtra without transformers.
        """
        wanted = loading.dtype_of(dtype)
        loading.require_transformers()
        path = loading.resolve(model, progress)
        built, tokenizer = loading.load_model(path, wanted, torch.device(device))
        options.setdefault("name", str(model))
        options.setdefault("keep_model", False)
        return cls(built, tokenizer, **options)

    @property
    def backbone(self) -> str:
        """Which backbone computes the forward: "fused" or "transformers"."""
        return self._backbone.name

    def kv_bytes(self, tokens: int | None = None) -> int:
        """Bytes of keys and values: of `tokens` cached tokens, or all that are reserved."""
        return self.cache.nbytes if tokens is None else self._shape.nbytes(tokens)

    def open(self, slots: Tensor, prompts: Sequence[Tensor]) -> Scores:
        """See `Target`. Short prompts share forwards, long ones are cut into chunks; only last tokens are scored.

        Raises CapacityError if a prompt has more than `max_len` tokens or a slot does not exist.
        """
        return self.resume(slots, prompts, [0] * len(prompts))

    def resume(self, slots: Tensor, prompts: Sequence[Tensor], cached: Sequence[int]) -> Scores:
        """See `Resumable`. Rows of sliding-window layers are never overwritten, so any prefix of them can be used."""
        self._check_slots(slots)
        for row, prompt in enumerate(prompts):
            if not 0 < prompt.shape[0] <= self.spec.max_len:
                raise CapacityError(
                    f"prompt {row} has {prompt.shape[0]} tokens; max_len={self.spec.max_len} and none may be empty. "
                    "Shorten the prompt or raise max_len."
                )
        logits: list[Tensor | None] = [None] * len(prompts)
        hidden: list[Tensor | None] = [None] * len(prompts)
        for rows, step in forwards(slots, prompts, cached, chunk=self.prefill_chunk, vocab_size=self.spec.vocab_size):
            scores = self._forward(step)
            for i, row in enumerate(rows):  # a later chunk of the same prompt takes the place of an earlier one
                logits[row] = scores.logits[i]
                hidden[row] = None if scores.hidden is None else scores.hidden[i]
        states = [state for state in hidden if state is not None]
        return Scores(torch.stack([row for row in logits if row is not None]), torch.stack(states) if states else None)

    def score(self, slots: Tensor, lengths: Tensor, draft: Draft) -> Scores:
        """See `Target`. Raises CapacityError if the draft is wider than `max_budget` or a sequence has no room."""
        if draft.nodes > self.spec.max_budget:
            raise CapacityError(
                f"a draft of {draft.nodes} nodes was to be scored; max_budget={self.spec.max_budget}. "
                "Lower the budget or raise max_budget."
            )
        start = lengths - 1
        place = self.cache.place(slots, start, draft.nodes)
        positions = (start[:, None] + draft.depth).clamp(max=self.spec.max_len - 1)
        tokens = draft.tokens.clamp(0, self.spec.vocab_size - 1)  # unused nodes may hold -1
        return self._forward(Step(tokens, positions, place, draft.ancestors, draft.depth))

    def commit(self, slots: Tensor, lengths: Tensor, draft: Draft, verdict: Verdict) -> None:
        """See `Target`. A chain's rows are in path order already, so nothing is moved for it."""
        if draft.linear:
            return
        path = verdict.path
        if path.device.type == "cpu":
            index = torch.arange(path.shape[1])
            moved = ((path > index).any(0) * (index + 1)).max()
            if not moved:
                return
            path = path[:, : int(moved)]
        self.cache.keep(slots, lengths - 1, path)

    def close(self, slots: Tensor) -> None:
        """See `Target`. Rows of a closed slot are scratch, so there is nothing to write."""
        self._check_slots(slots)

    def take_rows(self, slot: int, start: int, stop: int) -> Rows:
        """See `Resumable`."""
        return self.cache.take(slot, start, stop)

    def put_rows(self, slot: int, start: int, rows: Rows) -> None:
        """See `Resumable`."""
        self.cache.put(slot, start, *rows)

    def _forward(self, step: Step) -> Scores:
        with torch.inference_mode():
            logits, hidden = self._backbone(step, self.cache)
        # Copies made out here are ordinary tensors, which may be written to and trained on.
        return Scores(logits.to(torch.float32, copy=True), None if hidden is None else hidden.clone())

    def _check_slots(self, slots: Tensor) -> None:
        if slots.device.type == "cpu" and not all(0 <= slot < self.spec.slots for slot in slots.tolist()):
            raise CapacityError(
                f"slots {slots.tolist()} were named; the target has {self.spec.slots}, from 0 on. "
                "Raise slots or hold fewer sequences at a time."
            )


def _max_len(config: Any, asked: int | None) -> int:
    """Tokens a sequence may have, checked against the positions the model has."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or 0
    if positions < 1:  # no table of positions, and none in the config: nothing limits a sequence
        positions = sys.maxsize
    if asked is None:
        return min(int(positions), _DEFAULT_MAX_LEN)
    if not 0 < asked <= positions:
        raise CapacityError(
            f"max_len={asked} was asked for; the model has {positions} positions. "
            f"Choose a max_len between 1 and {positions}."
        )
    return asked


def _taps(taps: Sequence[int], layers: int) -> tuple[int, ...]:
    for tap in taps:
        if not 0 <= tap < layers:
            raise OptionError(f"layer {tap!r} was to be tapped; the model has {layers}. Tap layers 0 to {layers - 1}.")
    return tuple(taps)


def _spec(
    model: Any, found: Probe, max_len: int, slots: int, max_budget: int, taps: tuple[int, ...], name: str
) -> TargetSpec:
    return TargetSpec(
        vocab_size=found.logits.shape[-1],
        hidden_size=int(model.config.get_text_config().hidden_size),
        num_layers=found.shape.layers,
        max_len=max_len,
        slots=slots,
        max_budget=max_budget,
        eos_ids=_eos_ids(model),
        device=found.logits.device,
        dtype=model.dtype,
        taps=taps,
        name=name or str(getattr(model.config, "model_type", "")),
    )


def _eos_ids(model: Any) -> tuple[int, ...]:
    """The tokens that end a text: of the generation config, else of the config; one, several or none."""
    for config in (getattr(model, "generation_config", None), model.config, model.config.get_text_config()):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return tuple(int(token) for token in found) if isinstance(found, list | tuple) else (int(found),)
    return ()


def _backbone(model: Any, choice: str, positions: int, taps: tuple[int, ...], keep_model: bool) -> Backbone:
    """The backbone of that name; "auto" takes the fused one where the model fits."""
    from specdec.hf import fused

    if choice not in _BACKBONES:
        raise OptionError(f"backbone {choice!r} was asked for; known are {', '.join(_BACKBONES)}. Choose one of them.")
    unfit = None if choice == "transformers" else fused.unfit(model)
    if choice == "fused" and unfit:
        raise OptionError(f"backbone 'fused' was asked for; {unfit}. Choose 'auto' or 'transformers'.")
    if choice == "transformers" or unfit:
        from specdec.hf.modules import TransformersBackbone

        return TransformersBackbone(model, taps=taps)
    with torch.no_grad():
        return fused.FusedBackbone(model, positions=positions, taps=taps, consume=not keep_model)


def _slabs(found: Probe, slots: int, rows: int, device: torch.device) -> KVCache:
    shape = found.shape
    return KVCache(
        layers=shape.layers,
        slots=slots,
        heads=shape.heads,
        rows=rows,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        dtype=shape.dtype,
        device=device,
    )
