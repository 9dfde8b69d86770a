"""Settings of an engine, and the only place that reads the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from specdec.errors import OptionError, nearest

ENV_PREFIX = "SPECDEC_"


def env(name: str) -> str | None:
    """The environment variable SPECDEC_<name>; empty counts as unset."""
    return os.environ.get(ENV_PREFIX + name) or None


def environment() -> dict[str, str]:
    """Every SPECDEC_ variable that is set and not empty, by its name without the prefix."""
    found = {name: value for name, value in os.environ.items() if name.startswith(ENV_PREFIX)}
    return {name.removeprefix(ENV_PREFIX): value for name, value in found.items() if value}


def check_mode() -> bool:
    """Whether SPECDEC_CHECK asks for contracts to be checked at every call."""
    return env("CHECK") not in (None, "0")


def cache_dir() -> Path:
    """Where converted models are kept: SPECDEC_CACHE, else specdec in the user's cache folder."""
    if chosen := env("CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specdec"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine runs.

    budget      nodes a draft may have at most, the anchor included; None asks the drafter, else 8
    policy      how the budget of a round is chosen: "fixed" takes `budget`; "cost" weighs a measured step time
                against the acceptance seen so far and may stop drafting
    state_bytes  bytes of keys and values kept of prompts of named owners and sessions, so that a later prompt with
                the same first tokens is not prefilled anew; 0 keeps nothing
    check       contracts of all parts are checked at every call; None asks SPECDEC_CHECK
    """

    budget: int | None = None
    policy: str = "fixed"
    state_bytes: int = 0
    check: bool | None = None
    drafter_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    verifier_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.budget is not None and (type(self.budget) is not int or self.budget < 1):
            raise OptionError(
                f"budget counts nodes with the anchor and is at least 1 (1 drafts nothing); found {self.budget!r}."
            )
        if type(self.state_bytes) is not int or self.state_bytes < 0:
            raise OptionError(f"state_bytes is a whole number of at least 0; found {self.state_bytes!r}.")
        if self.policy not in ("fixed", "cost"):
            raise OptionError(f"policy is 'fixed' or 'cost'; found {self.policy!r}.")

    @classmethod
    def of(cls, **options: Any) -> EngineConfig:
        """A config from keywords; an unknown one is refused with the closest known name."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise OptionError(
                    f"engine option {name!r} is not known (known: {', '.join(known)}).{nearest(name, known)}"
                )
        return cls(**options)

    @classmethod
    def from_toml(cls, path: str | Path) -> EngineConfig:
        """A config from the [engine] table of a TOML file."""
        with Path(path).open("rb") as file:
            try:
                table = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise OptionError(f"{path} is not valid TOML: {error}.") from error
        options = table.get("engine", {})
        if not isinstance(options, dict):
            raise OptionError(f"{path}: engine is a table, written as [engine]; found {options!r}.")
        return cls.of(**options)
