"""What the operator chose: a TOML file or SPECDEC_ variables, since a plug-in cannot add launch flags."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from specdec import config, registry
from specdec.drafter import Drafter
from specdec.errors import OptionError, nearest
from specdec.verifier import Verifier

#: Variables that the library knows elsewhere, or that switch the plug-in off.
_OTHER = ("CACHE", "CHECK", "CONFIG", "DISABLE")
_TABLE = "sglang"

Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the server drafts and verifies.

    drafter   a name or a composition of registered drafters ("reuse:ngram")
    verifier  a registered rule
    budget    nodes a draft may have, the anchor included, where --speculative-num-draft-tokens is not given
    *_options keyword arguments by name: {"ngram": {"max_match": 8}}
    """

    drafter: str = "ngram"
    verifier: str = "match"
    budget: int = 8
    drafter_options: Options = field(default_factory=dict)
    verifier_options: Options = field(default_factory=dict)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """The settings that `environment` holds (names without SPECDEC_).

        CONFIG names a TOML file with the table [sglang]; DRAFTER, VERIFIER, BUDGET and, as JSON, DRAFTER_OPTIONS and
        VERIFIER_OPTIONS go before it. Raises OptionError for what is unknown or unreadable.
        """
        known = [f.name.upper() for f in fields(cls)]
        for name in environment:
            if name not in known and name not in _OTHER:
                names = ", ".join(config.ENV_PREFIX + item for item in (*known, *_OTHER))
                raise OptionError(
                    f"the variable {config.ENV_PREFIX}{name} is set; no setting has that name (known: {names})."
                    f"{nearest(name, known)}"
                )
        chosen = _table(environment["CONFIG"]) if "CONFIG" in environment else {}
        chosen |= {name.lower(): _value(name, environment[name]) for name in known if name in environment}
        return cls._of(chosen)

    @classmethod
    def _of(cls, chosen: dict[str, Any]) -> Settings:
        known = [f.name for f in fields(cls)]
        for name in chosen:
            if name not in known:
                raise OptionError(f"setting {name!r} is not known (known: {', '.join(known)}).{nearest(name, known)}")
        settings = cls(**chosen)
        if type(settings.budget) is not int or settings.budget < 1:
            raise OptionError(f"budget counts nodes with the anchor and is at least 1; found {settings.budget!r}.")
        return settings

    def with_draft_model(self, path: str | None) -> Settings:
        """The settings where `path`, if given, is the model of `draft_model`, unless its options name one."""
        if path is None:
            return self
        if "draft_model" not in self.drafter.split(":"):
            raise OptionError(
                f"--speculative-draft-model-path {path} was given; the drafter {self.drafter!r} has no model. "
                "Set SPECDEC_DRAFTER=draft_model, or leave the path out."
            )
        own = dict(self.drafter_options.get("draft_model", {}))
        return replace(self, drafter_options={**self.drafter_options, "draft_model": {"model": path} | own})

    def make_drafter(self) -> Drafter:
        """A new drafter."""
        made: Drafter = registry.build(registry.DRAFTERS, self.drafter, self.drafter_options)
        return made

    def make_verifier(self) -> Verifier:
        """A new rule."""
        made: Verifier = registry.build(registry.VERIFIERS, self.verifier, self.verifier_options)
        return made


def current() -> Settings:
    """The settings of this process."""
    return Settings.read(config.environment())


def _value(name: str, text: str) -> Any:
    """The value of a variable: a number for BUDGET, JSON for options, else the text."""
    if name == "BUDGET":
        if not text.strip().isdigit():
            raise OptionError(f"{config.ENV_PREFIX}BUDGET is a whole number of at least 1; found {text!r}.")
        return int(text)
    if not name.endswith("_OPTIONS"):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{config.ENV_PREFIX}{name} is not valid JSON: {error}; found {text!r}.") from error
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        raise OptionError(
            f'{config.ENV_PREFIX}{name} maps names to options, as in {{"ngram": {{"max_match": 8}}}}; found {text!r}.'
        )
    return value


def _table(path: str) -> dict[str, Any]:
    """The table [sglang] of a TOML file."""
    try:
        with Path(path).expanduser().open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise OptionError(
            f"{config.ENV_PREFIX}CONFIG names {path!r}, which cannot be read: {error.strerror}."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{path} is not valid TOML: {error}.") from error
    table = found.get(_TABLE)
    if not isinstance(table, dict):
        raise OptionError(f"{path} has no table [{_TABLE}] (found: {', '.join(found) or 'nothing'}). Add one.")
    return dict(table)
