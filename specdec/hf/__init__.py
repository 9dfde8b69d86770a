"""Targets that are transformers models; importing this package does not import transformers."""

from specdec.hf.target import HFTarget

__all__ = ["HFTarget"]
