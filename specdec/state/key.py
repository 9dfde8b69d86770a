"""Whose state it is, and which model wrote it: what differs in one field is never shared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """What wrote the rows: rows of two identities are never mixed.

    model: a name that differs wherever weights or settings differ; dtype: that of keys and values; adapter: the
    adapters in force, empty without one.
    """

    model: str
    dtype: str
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class StateKey:
    """The name of one prefix tree: an owner's rows, written by one model."""

    owner: str
    identity: StateIdentity


def namespace(owner: str | None, session: str | None) -> str | None:
    """The owner part of a key: the owner's, else the session's own; None if neither is named, and nothing is kept.

    The prefixes keep an owner and a session of the same name apart.
    """
    if owner is not None:
        return f"owner:{owner}"
    return None if session is None else f"session:{session}"
