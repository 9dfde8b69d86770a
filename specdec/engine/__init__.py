"""The engine: slots, continuous batching, stops and text around the round."""

from specdec.engine.engine import Engine
from specdec.engine.session import DecodeSession, Emitted

__all__ = ["DecodeSession", "Emitted", "Engine"]
