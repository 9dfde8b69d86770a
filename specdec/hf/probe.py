"""A few tokens through the model's own forward: what it caches, and what a backbone has to reproduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.errors import SpecdecError
from specdec.hf import support
from specdec.hf.backbone import Backbone, Step
from specdec.hf.capacity import KVShape
from specdec.kvcache import KVCache
from specdec.types import Draft

_TOKENS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """What the model's own forward said: tokens [1, T], logits [1, T, V] float32, and the shape of its cache."""

    tokens: Tensor
    logits: Tensor
    shape: KVShape


def probe(model: Any, max_len: int) -> Probe:
    """Run the model as it is; refuses models that cache anything but one key and value a token and layer."""
    config = model.config
    vocab = int(config.get_text_config().vocab_size)
    count = min(_TOKENS, max_len)
    tokens = (torch.arange(count, device=model.device)[None] * 7919 + 11) % vocab
    before = config._attn_implementation
    if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
        config._attn_implementation = "eager"  # older releases choose a kernel that leaves the cap out
    try:
        with torch.no_grad():
            out = model(input_ids=tokens, use_cache=True)
    finally:
        config._attn_implementation = before
    cache = getattr(out, "cache", None)
    if cache is None:
        cache = getattr(out, "past_key_values", None)
    return Probe(tokens, out.logits.float(), _shape(config, cache))


def verify(backbone: Backbone, cache: KVCache, found: Probe, config: Any) -> None:
    """Refuse the model if the backbone says something else than its own forward; writes scratch rows of slot 0."""
    half = found.tokens.shape[1] // 2
    parts = [(0, found.tokens[:, :half]), (half, found.tokens[:, half:])]
    try:
        said = [backbone(_chain(cache, offset, part), cache)[0] for offset, part in parts if part.shape[1]]
    except SpecdecError:
        raise
    except Exception as error:
        raise support.refuse(config, f"its modules fail over slabs ({type(error).__name__}: {error})") from error
    gap = (torch.cat(said, 1).float() - found.logits).abs().max().item()
    size = max(1e-6, found.logits.abs().max().item())
    bound = (1e-3 if found.shape.dtype == torch.float32 else 0.1) * size
    if not gap <= bound:
        raise support.refuse(
            config,
            f"over slabs its logits differ by {gap:.3g} from those of its own forward (at most {bound:.3g})",
        )


def _chain(cache: KVCache, offset: int, tokens: Tensor) -> Step:
    draft = Draft.chain(tokens[:, 0], tokens[:, 1:])
    start = torch.full((1,), offset, device=tokens.device)
    place = cache.place(torch.zeros_like(start), start, draft.nodes)
    return Step(draft.tokens, start[:, None] + draft.depth, place, draft.ancestors, draft.depth)


def _shape(config: Any, cache: Any) -> KVShape:
    """The keys and values of one token; every layer must have the same."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = list(getattr(cache, "layers", ()))
    count = int(config.get_text_config().num_hidden_layers)
    if len(layers) != count:
        raise support.refuse(config, f"it caches {len(layers)} layers of {count}")
    for layer in layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or layer.keys is None:
            raise support.refuse(config, f"it keeps a cache of type {type(layer).__name__!r}")
    shapes = {(x.keys.shape[1], x.keys.shape[3], x.values.shape[1], x.values.shape[3]) for x in layers}
    if len(shapes) != 1:
        raise support.refuse(config, f"its layers cache keys and values of different shapes, {sorted(shapes)}")
    heads, k_dim, v_heads, v_dim = shapes.pop()
    if heads != v_heads:
        raise support.refuse(config, f"it caches {heads} heads of keys and {v_heads} of values")
    return KVShape(layers=count, heads=heads, k_dim=k_dim, v_dim=v_dim, dtype=layers[0].keys.dtype)
