"""Keys and values of earlier prompts, kept in a prefix tree under a byte budget; knows no model."""

from specdec.state.key import StateIdentity, StateKey
from specdec.state.segment import Branch, Rows
from specdec.state.store import StateStore

__all__ = ["Branch", "Rows", "StateIdentity", "StateKey", "StateStore"]
