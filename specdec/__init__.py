"""Parallel and speculative decoding: a draft may change when a token comes, never which token comes.

Names load on first use, so that importing the package costs neither torch nor time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.config import EngineConfig as EngineConfig
    from specdec.drafter import Drafter as Drafter
    from specdec.drafter import DrafterSpec as DrafterSpec
    from specdec.engine import DecodeSession as DecodeSession
    from specdec.engine import Engine as Engine
    from specdec.errors import CapacityError as CapacityError
    from specdec.errors import CompositionError as CompositionError
    from specdec.errors import ContractError as ContractError
    from specdec.errors import MissingExtra as MissingExtra
    from specdec.errors import OptionError as OptionError
    from specdec.errors import SpecdecError as SpecdecError
    from specdec.errors import UnknownPlugin as UnknownPlugin
    from specdec.errors import UnsupportedModel as UnsupportedModel
    from specdec.hf import HFTarget as HFTarget
    from specdec.params import SamplingParams as SamplingParams
    from specdec.registry import register as register
    from specdec.round import run_round as run_round
    from specdec.sampling import Sampling as Sampling
    from specdec.target import Target as Target
    from specdec.target import TargetSpec as TargetSpec
    from specdec.types import Chunk as Chunk
    from specdec.types import Completion as Completion
    from specdec.types import Context as Context
    from specdec.types import Draft as Draft
    from specdec.types import Request as Request
    from specdec.types import Scores as Scores
    from specdec.types import Verdict as Verdict
    from specdec.verifier import Verifier as Verifier

__version__ = "0.1.0"

_HOMES = {
    "specdec.config": ("EngineConfig",),
    "specdec.drafter": ("Drafter", "DrafterSpec"),
    "specdec.engine": ("DecodeSession", "Engine"),
    "specdec.errors": (
        "CapacityError",
        "CompositionError",
        "ContractError",
        "MissingExtra",
        "OptionError",
        "SpecdecError",
        "UnknownPlugin",
        "UnsupportedModel",
    ),
    "specdec.hf": ("HFTarget",),
    "specdec.params": ("SamplingParams",),
    "specdec.registry": ("register",),
    "specdec.round": ("run_round",),
    "specdec.sampling": ("Sampling",),
    "specdec.target": ("Target", "TargetSpec"),
    "specdec.types": ("Chunk", "Completion", "Context", "Draft", "Request", "Scores", "Verdict"),
    "specdec.verifier": ("Verifier",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605  one table of names, not two


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specdec' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
