"""How much memory slabs take, and whether it is there, before anything is reserved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from specdec.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The keys and values that one model caches for each token, in every layer."""

    layers: int
    heads: int
    k_dim: int
    v_dim: int
    dtype: torch.dtype

    def nbytes(self, tokens: int) -> int:
        """Bytes of the keys and values of `tokens` tokens."""
        return tokens * self.layers * self.heads * (self.k_dim + self.v_dim) * self.dtype.itemsize


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can still be reserved on the device; None where that cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def check_memory(shape: KVShape, *, slots: int, rows: int, device: torch.device) -> None:
    """Raise CapacityError with the numbers if slabs of `slots` times `rows` tokens do not fit on the device."""
    needed, found = shape.nbytes(slots * rows), available_bytes(device)
    if found is not None and needed > found:
        raise CapacityError(
            f"slots={slots} of {rows} rows (max_len and max_budget) need {needed} bytes of keys and values; "
            f"{found} bytes are available on {device}. Lower slots or max_len: a slot takes {shape.nbytes(rows)} "
            f"bytes, a token {shape.nbytes(1)}."
        )
