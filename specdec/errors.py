"""Every error specdec raises on purpose.

SpecdecError
├── UnknownPlugin (LookupError)      a name that is not registered
├── OptionError (ValueError)         a setting out of range, unknown, or not to be honoured here
├── CompositionError (TypeError)     parts that cannot work together
├── ContractError (RuntimeError)     a plug-in broke its contract
├── CapacityError (RuntimeError)     slots, positions or memory exhausted
├── UnsupportedModel (ValueError)    a model this engine cannot run exactly
└── MissingExtra (ImportError)       an optional dependency that is not installed

A message says what was asked, what was found, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpecdecError(Exception):
    """Base of all errors raised on purpose by specdec and its plug-ins."""


class UnknownPlugin(SpecdecError, LookupError):
    """A drafter, verifier or target name that nobody registered."""


class OptionError(SpecdecError, ValueError):
    """A setting that is out of range, unknown, or cannot be honoured by the chosen parts."""


class CompositionError(SpecdecError, TypeError):
    """Parts that are sound by themselves and cannot work together."""


class ContractError(SpecdecError, RuntimeError):
    """A plug-in returned what its contract forbids; the message names it, the method and the value."""


class CapacityError(SpecdecError, RuntimeError):
    """More slots, positions or memory were asked for than there are; the message holds the numbers."""


class UnsupportedModel(SpecdecError, ValueError):
    """A model whose state or attention this engine cannot roll back or mask exactly."""


class MissingExtra(SpecdecError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence proposing the known name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def missing_extra(module: str, extra: str, purpose: str) -> MissingExtra:
    """The error for an optional `module` that `purpose` needs."""
    return MissingExtra(
        f"{purpose} needs the package {module!r}, which is not installed. "
        f"Install it with: pip install 'specdec-kit[{extra}]'"
    )
