"""Which models can be run exactly, and why the others cannot."""

from __future__ import annotations

from typing import Any

from specdec.errors import UnsupportedModel

_FULL = "full_attention"
_SLIDING = "sliding_attention"
#: Kinds of layers that fold all tokens into one state; newer transformers name these instead of marking the model.
_RECURRENT = frozenset({"linear_attention", "hybrid", "hybrid_sliding", "mamba", "mamba2", "recurrent"})
_STATE = "its layers keep a recurrent or convolutional state that a rejected draft would spoil"
#: Rotary tables that depend on how long the sequence is by now, so that a cached key would have to change.
_LENGTH_DEPENDENT = ("dynamic", "longrope")


def refuse(config: Any, reason: str) -> UnsupportedModel:
    """The error for a model type, with the reason and what can be run instead."""
    return UnsupportedModel(
        f"model type {getattr(config, 'model_type', '?')!r} was asked for; {reason}. "
        "Use a decoder-only model whose layers all have full or sliding-window attention."
    )


def check_config(config: Any) -> None:
    """Refuse by name what a config already shows cannot be rolled back or masked exactly."""
    if getattr(config, "is_encoder_decoder", False):
        raise refuse(config, "it is an encoder-decoder, whose cross-attention has no slab here")
    text = config.get_text_config()
    if _stateful(config) or _stateful(text) or _RECURRENT.intersection(layer_types(text)):
        raise refuse(config, _STATE)
    odd = sorted({kind for kind in layer_types(text) if kind not in (_FULL, _SLIDING)})
    if odd:
        raise refuse(config, f"it has layers of type {', '.join(map(repr, odd))}")
    if getattr(text, "use_bidirectional_attention", False) or getattr(text, "is_causal", True) is False:
        raise refuse(config, "its attention looks ahead")
    if getattr(text, "kv_sharing_modes", None) or getattr(text, "num_kv_shared_layers", 0):
        raise refuse(config, "its layers share keys and values with each other")


def check_model(model: Any) -> None:
    """Refuse by name what only the built model shows."""
    check_config(model.config)
    if getattr(model, "_is_stateful", False):
        raise refuse(model.config, _STATE)
    if any(name.rsplit(".", 1)[-1] == "sinks" for name, _ in model.named_parameters()):
        raise refuse(model.config, "its attention has learned sinks, which the attention here does not add")
    if model.get_output_embeddings() is None:
        raise refuse(model.config, "it has no language-model head")


def check_rope(config: Any, max_len: int) -> None:
    """Refuse rotary tables that change once a sequence grows past the trained length within `max_len`."""
    text = config.get_text_config()
    for kind, parameters in _rope_kinds(getattr(text, "rope_parameters", None)):
        trained = (
            parameters.get("original_max_position_embeddings")
            or getattr(text, "original_max_position_embeddings", None)
            or text.max_position_embeddings
        )
        if kind in _LENGTH_DEPENDENT and max_len > trained:
            raise refuse(config, f"its {kind!r} rotary table changes past {trained} positions and max_len is {max_len}")


def layer_types(text: Any) -> list[str]:
    """The kind of each layer, inferred as transformers does where the config does not list them."""
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        return list(kinds)
    layers = int(text.num_hidden_layers)
    if getattr(text, "layers_block_type", None) is not None:
        return list(text.layers_block_type)
    if getattr(text, "sliding_window", None) is not None:
        return [_SLIDING] * layers
    if getattr(text, "attention_chunk_size", None) is not None:
        return ["chunked_attention"] * layers
    return [_FULL] * layers


def windows(text: Any) -> list[int | None]:
    """The sliding window of each layer; None is full attention."""
    return [int(text.sliding_window) if kind == _SLIDING else None for kind in layer_types(text)]


def _stateful(config: Any) -> bool:
    """Whether transformers marks the causal model of this config as carrying state beside keys and values."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL_MODELS

    known = type(config) in CAUSAL_MODELS
    return bool(known and getattr(CAUSAL_MODELS[type(config)], "_is_stateful", False))


def _rope_kinds(parameters: Any) -> list[tuple[str, dict[str, Any]]]:
    """The rope types of a config; models with two tables nest one dictionary for each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    if "rope_type" in parameters:
        return [(parameters["rope_type"], parameters)]
    return [found for value in parameters.values() for found in _rope_kinds(value)]
