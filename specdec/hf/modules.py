"""Any decoder of transformers, through its own modules: slabs behind its Cache, tree masks behind its attention."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from specdec.hf import support
from specdec.hf.backbone import Step, biases, pick
from specdec.kvcache import KVCache

_ATTENTION = "specdec"


@dataclass(slots=True)
class _Pass:
    """The forward under way: its masks by layer, what is scored, and what the hooks caught."""

    windows: list[int | None]
    masks: dict[int | None, Tensor | None]
    last: Tensor | None
    attended: set[int] = field(default_factory=set)
    tapped: dict[int, Tensor] = field(default_factory=dict)


_current: ContextVar[_Pass | None] = ContextVar("specdec_forward", default=None)


class SlabCache(Cache):  # type: ignore[misc]
    """The slabs in the form that attention modules of transformers write and read."""

    def __init__(self, slabs: KVCache, step: Step) -> None:
        super().__init__(layers=[])
        self._slabs, self._place = slabs, step.place

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values [B, heads, N, dim]; returns all rows that are read."""
        self._slabs.write(layer_idx, self._place, key_states, value_states)
        return self._slabs.view(layer_idx, self._place)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given, so nothing is counted from here."""
        return 0


class TransformersBackbone:
    """A causal model of transformers as it is; its attention is swapped for the length of each forward only."""

    name = "transformers"

    def __init__(self, model: Any, *, taps: tuple[int, ...] = ()) -> None:
        AttentionInterface.register(_ATTENTION, _attention)
        self.model, self.taps = model, taps
        self.text = model.config.get_text_config()
        self.windows = support.windows(self.text)
        known = inspect.signature(type(model).forward).parameters
        if "position_ids" not in known:
            raise support.refuse(model.config, "its forward takes no position_ids, so a tree cannot be placed")
        self._cache_keyword = "cache" if "cache" in known else "past_key_values"
        self._tapped = {index: _layers(model, len(self.windows))[index] for index in taps}

    def __call__(self, step: Step, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        """See `Backbone`."""
        masks = biases(step, self.windows, self.model.dtype)
        running = _Pass(self.windows, masks, step.last)
        with _running(self.model.config, running), self._hooks(running):
            out = self.model(
                input_ids=step.tokens,
                position_ids=step.positions,
                use_cache=True,
                **{self._cache_keyword: SlabCache(cache, step)},
            )
        if len(running.attended) != len(self.windows):
            missing = len(self.windows) - len(running.attended)
            raise support.refuse(
                self.model.config,
                f"{missing} of {len(self.windows)} layers bypass transformers' attention interface",
            )
        hidden = torch.cat([running.tapped[i] for i in self.taps], -1) if self.taps else None
        return out.logits, hidden

    @contextmanager
    def _hooks(self, running: _Pass) -> Iterator[None]:
        """Within it, taps are kept and the head sees the scored nodes only; nothing stays on the model after."""
        handles = [layer.register_forward_hook(_tap(running, index)) for index, layer in self._tapped.items()]
        if running.last is not None:
            handles.append(self.model.get_output_embeddings().register_forward_pre_hook(_scored(running.last)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _running(config: Any, running: _Pass) -> Iterator[None]:
    """Within it, modules of `config` attend through `_attention`; the user's choice is restored after."""
    before = config._attn_implementation
    token = _current.set(running)
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
        _current.reset(token)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention under the mask of the running forward: query [B, H, N, D] -> [B, N, H, D]."""
    running = _current.get()
    if running is None:
        raise RuntimeError("specdec's attention was called outside of a specdec target.")
    index = module.layer_idx
    window = running.windows[index]
    if sliding_window is not None and sliding_window != window:
        raise support.refuse(
            module.config, f"layer {index} has a window of {sliding_window} and its config says {window}"
        )
    if kwargs.get("s_aux") is not None:
        raise support.refuse(module.config, "its attention has sinks, which the attention here does not add")
    running.attended.add(index)
    bias = running.masks[window]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if softcap is not None:
        return _capped(query, key, value, bias, scale, softcap).transpose(1, 2), None
    grouped = query.shape[1] != key.shape[1]
    out = functional.scaled_dot_product_attention(query, key, value, bias, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2), None


def _capped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, cap: float) -> Tensor:
    """Attention whose scores are bent to stay within `cap` before the mask is added."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    weights = torch.tanh((q @ k.transpose(-1, -2)) * (scale / cap)) * cap
    if bias is not None:
        weights = weights + bias
    return weights.softmax(-1, dtype=torch.float32).to(v.dtype) @ v


def _scored(last: Tensor) -> Any:
    """A hook that hands only row `last` [B] to the head; what follows the head stays the model's own."""

    def keep(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (pick(args[0], last), *args[1:])

    return keep


def _tap(running: _Pass, index: int) -> Any:
    """A hook that keeps the output of layer `index`."""

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        running.tapped[index] = pick(output if isinstance(output, Tensor) else output[0], running.last)

    return keep


def _layers(model: Any, count: int) -> nn.ModuleList:
    """The list of decoder layers, whatever the model calls it."""
    for _, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise support.refuse(model.config, f"it has no list of {count} layers, so none can be tapped")
