"""The Llama shape in as few torch operators as possible.

One product for query, key and value; the residual sums and the gate inside the products where the CPU's library
does that; rotary tables computed once, by the model's own module, so that any scaling is the model's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdec.hf import linear, support
from specdec.hf.backbone import Step, biases, pick
from specdec.hf.norm import RMSNorm
from specdec.kvcache import KVCache

_SHAPES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")


def unfit(model: Any) -> str | None:
    """Why this model is not of the Llama shape, or None."""
    config = model.config
    if type(model).__name__ not in _SHAPES:
        return f"{type(model).__name__} is none of {', '.join(_SHAPES)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, not 'silu'"
    rope = (config.rope_parameters or {}).get("rope_type")
    if rope not in _FIXED_ROPE:
        return f"its rope type {rope!r} depends on the length"
    layer = model.model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    if any(type(part) is not nn.Linear for part in (*parts, mlp.gate_proj, mlp.up_proj, mlp.down_proj, model.lm_head)):
        return "its products are not plain ones (quantised, or with adapters)"
    if model.model.rotary_emb.inv_freq.numel() * 2 != attention.head_dim:
        return "only a part of each head is rotated"
    return None


class FusedBackbone:
    """The layers of a Llama-shaped model as plain functions; reads the model once and keeps its own weights.

    model       a model for which `unfit` is None; with `consume` its layers are taken apart one by one, so that
                weights never exist twice
    positions   rows of the rotary tables
    taps        layers whose output is handed out beside the logits
    """

    name = "fused"

    def __init__(self, model: Any, *, positions: int, taps: tuple[int, ...] = (), consume: bool = False) -> None:
        base = model.model
        dtype = base.embed_tokens.weight.dtype
        self.dtype, self.taps = dtype, taps
        self.embedding: Tensor = base.embed_tokens.weight.detach()
        at = torch.arange(positions, device=self.embedding.device)[None]
        cos, sin = base.rotary_emb(self.embedding[:1], at)
        half = cos.shape[-1] // 2
        self.cos = cos[0].detach().clone()  # [positions, D]
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
        self.windows = support.windows(model.config)
        pack = dtype == torch.bfloat16
        self.layers = []
        for i, layer in enumerate(base.layers):
            self.layers.append(_Layer(layer, pack=pack))
            if consume:
                base.layers[i] = nn.Identity()
        self.norm = RMSNorm(base.norm.weight.detach(), base.norm.variance_epsilon)
        self.head = linear.make(model.lm_head.weight.detach(), model.lm_head.bias, pack=dtype != torch.float16)

    def __call__(self, step: Step, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        """See `Backbone`."""
        x = functional.embedding(step.tokens, self.embedding)  # [B, N, H]
        rope = (self.cos[step.positions][:, None], self.sin[step.positions][:, None])  # [B, 1, N, D]
        slabs = _Slabs(cache, step, causal=_is_causal(step, self.windows))
        masks = dict.fromkeys(self.windows) if slabs.causal else biases(step, self.windows, self.dtype)
        tapped: dict[int, Tensor] = {}
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, masks[self.windows[i]], i, slabs)
            if i in self.taps:
                tapped[i] = pick(x, step.last)
        x = self.norm(pick(x, step.last))
        hidden = torch.cat([tapped[i] for i in self.taps], -1) if self.taps else None
        return self.head(x), hidden


class _Slabs:
    """Where each layer of one forward writes and reads, sliced once for all layers where slices do."""

    def __init__(self, cache: KVCache, step: Step, *, causal: bool) -> None:
        self._cache, self._place, self.causal = cache, step.place, causal
        place = step.place
        self._sliced = place.first is not None and place.offset is not None
        if place.first is not None and place.offset is not None:
            names = slice(place.first, place.first + place.slots.shape[0])
            rows = slice(place.offset, place.offset + place.nodes)
            self._written = [slab[:, names, :, rows].unbind() for slab in (cache.k, cache.v)]
            self._read = [slab[:, names, :, : place.span].unbind() for slab in (cache.k, cache.v)]

    def store(self, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [B, groups, N, D] of layer `index`; returns all its rows that are read."""
        if not self._sliced:
            self._cache.write(index, self._place, k, v)
            return self._cache.view(index, self._place)
        self._written[0][index].copy_(k)
        self._written[1][index].copy_(v)
        return self._read[0][index], self._read[1][index]


class _Layer:
    """One layer: attention and gated product, each with its norm and residual sum."""

    def __init__(self, layer: Any, *, pack: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.dim: int = attention.head_dim
        self.scale: float = attention.scaling
        self.heads = attention.q_proj.out_features // self.dim
        self.groups = attention.k_proj.out_features // self.dim
        self.before, self.between = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.q_norm, self.k_norm = (
            _norm(getattr(attention, name)) if hasattr(attention, name) else None for name in ("q_norm", "k_norm")
        )
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        weight = torch.cat([part.weight.detach() for part in parts])
        bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
        self.qkv = linear.make(weight, bias, pack=pack)
        self.out = _product(attention.o_proj, pack)
        self.gate, self.up, self.down = (_product(part, pack) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))

    def __call__(
        self, x: Tensor, rope: tuple[Tensor, Tensor], bias: Tensor | None, index: int, slabs: _Slabs
    ) -> Tensor:
        """Shapes: x [B, N, H] -> [B, N, H]. Writes the rows of this forward in layer `index`."""
        x = self.out.plus(self._attend(self.before(x), rope, bias, index, slabs), x)
        y = self.between(x)
        return self.down.plus(self.up.times(y, self.gate.silu(y)), x)

    def _attend(self, y: Tensor, rope: tuple[Tensor, Tensor], bias: Tensor | None, index: int, slabs: _Slabs) -> Tensor:
        rows, n, _ = y.shape
        qkv = self.qkv(y).view(rows, n, -1, self.dim).transpose(1, 2)  # [B, heads + 2 * groups, N, D]
        qk, v = torch.split(qkv, [self.heads + self.groups, self.groups], 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = torch.split(qk, [self.heads, self.groups], 1)
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], 1)
        turned = torch.roll(qk, self.dim // 2, -1)
        q, k = torch.split((qk * rope[0]).addcmul_(turned, rope[1]), [self.heads, self.groups], 1)
        keys, values = slabs.store(index, k, v)
        seen = functional.scaled_dot_product_attention(
            q, keys, values, bias, is_causal=slabs.causal, scale=self.scale, enable_gqa=self.heads != self.groups
        )
        return seen.transpose(1, 2).reshape(rows, n, -1)


def _is_causal(step: Step, windows: list[int | None]) -> bool:
    """Whether every layer's mask is the plain triangle, which the kernel knows without reading one."""
    return step.causal and step.tokens.shape[1] > 1 and all(w is None or step.place.span <= w for w in windows)


def _product(part: Any, pack: bool) -> linear.Linear:
    bias = None if part.bias is None else part.bias.detach()
    return linear.make(part.weight.detach(), bias, pack=pack)


def _norm(module: Any) -> RMSNorm:
    return RMSNorm(module.weight.detach(), module.variance_epsilon)
