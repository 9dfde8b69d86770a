"""The name of a model by what it computes, so that state of one is never taken for state of another."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from specdec.state import StateIdentity

_SAMPLES = 1024
_NAMES = ("_name_or_path", "transformers_version", "_attn_implementation", "torch_dtype", "dtype")


def identify(model: Any, dtype: torch.dtype) -> StateIdentity:
    """What a model is: its settings, a sample of every weight, the dtype of keys and values, the adapters in force.

    The same folder gives the same identity in another process. A few changed entries of a large weight may be missed.
    """
    digest = hashlib.sha256()
    settings = {key: value for key, value in model.config.to_dict().items() if key not in _NAMES}
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            flat = weight.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // _SAMPLES)].contiguous().cpu()
            digest.update(sample.view(torch.uint8).numpy().tobytes())
    kind = getattr(model.config, "model_type", "model")
    return StateIdentity(f"{kind}-{digest.hexdigest()[:32]}", str(dtype).removeprefix("torch."), _adapters(model))


def _adapters(model: Any) -> str:
    """The adapters in force, as peft and transformers name them; empty without one."""
    if not getattr(model, "peft_config", None):
        return ""
    active = getattr(model, "active_adapters", None)
    names = active() if callable(active) else active
    return ",".join([names] if isinstance(names, str) else sorted(names or ()))
