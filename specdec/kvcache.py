"""Keys and values of many sequences in slabs indexed by slot; rows past a sequence's length are scratch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import CapacityError


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where one forward writes and how far it reads.

    slots [B], start [B] int64: node i of row b goes to row start[b] + i of slot slots[b]. span: rows that are read,
    the written ones included. first: the slots are first, first + 1, ... (then views need no copy), or None.
    offset: the common start if it is known on the host, or None.
    """

    slots: Tensor
    start: Tensor
    nodes: int
    span: int
    first: int | None = None
    offset: int | None = None


class KVCache:
    """Slabs k [layers, slots, heads, rows, k_dim] and v [layers, slots, heads, rows, v_dim].

    Memory is reserved once, here; on a CPU pages are touched only as sequences grow into them.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        heads: int,
        rows: int,
        k_dim: int,
        v_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (layers, slots, heads, rows)
        self.k = torch.zeros(*shape, k_dim, dtype=dtype, device=device)
        self.v = torch.zeros(*shape, v_dim or k_dim, dtype=dtype, device=device)

    @property
    def rows(self) -> int:
        """Rows of each slot."""
        return self.k.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.k.nbytes + self.v.nbytes

    def place(self, slots: Tensor, start: Tensor, nodes: int) -> Place:
        """Where a forward of `nodes` nodes a row goes. On a CPU the numbers are read, so that views can be slices."""
        if slots.device.type != "cpu" or type(slots) is not Tensor:
            return Place(slots, start, nodes, self.rows)
        names, starts = slots.tolist(), start.tolist()
        span = max(starts) + nodes
        if min(starts) < 0 or span > self.rows:
            raise CapacityError(
                f"rows {min(starts)} to {span - 1} of a slot were asked for; a slot has rows 0 to {self.rows - 1}. "
                "Reserve more rows, or keep sequences shorter."
            )
        first = names[0] if names == list(range(names[0], names[0] + len(names))) else None
        offset = starts[0] if len(set(starts)) == 1 else None
        return Place(slots, start, nodes, span, first, offset)

    def write(self, layer: int, place: Place, k: Tensor, v: Tensor) -> None:
        """Store k [B, heads, N, k_dim] and v [B, heads, N, v_dim]; writes the rows of `place`."""
        for slab, new in ((self.k[layer], k), (self.v[layer], v)):
            if place.first is not None and place.offset is not None:
                rows = slice(place.offset, place.offset + place.nodes)
                slab[place.first : place.first + new.shape[0], :, rows] = new
            else:
                rows_at = place.start[:, None] + torch.arange(place.nodes, device=new.device)
                slab[place.slots[:, None], :, rows_at] = new.transpose(1, 2)

    def view(self, layer: int, place: Place) -> tuple[Tensor, Tensor]:
        """The first `span` rows of the slots: k, v [B, heads, span, dim]; a view where slots are consecutive."""
        if place.first is not None:
            names = slice(place.first, place.first + place.slots.shape[0])
            return self.k[layer, names, :, : place.span], self.v[layer, names, :, : place.span]
        return self.k[layer, place.slots, :, : place.span], self.v[layer, place.slots, :, : place.span]

    def keep(self, slots: Tensor, start: Tensor, path: Tensor) -> None:
        """Move the rows of a tree path to the front, in path order; writes rows start .. start + N - 1.

        path [B, N] int64, -1 padded: node indices relative to `start` [B].
        """
        source = start[:, None] + path.clamp(min=0)
        goal = start[:, None] + torch.arange(path.shape[1], device=path.device)
        for slab in (self.k, self.v):
            slab[:, slots[:, None], :, goal] = slab[:, slots[:, None], :, source]

    def take(self, slot: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Copies of rows `start` to `stop` of a slot: k [layers, heads, n, k_dim] and v [layers, heads, n, v_dim]."""
        k, v = (slab[:, slot, :, start:stop].clone(memory_format=torch.contiguous_format) for slab in (self.k, self.v))
        return k, v

    def put(self, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Store rows as `take` gives them; writes rows start .. start + n - 1 of the slot."""
        for slab, new in ((self.k, k), (self.v, v)):
            slab[:, slot, :, start : start + new.shape[2]] = new

    def fork(self, source: int, goal: int, length: int) -> None:
        """Copy the first `length` rows of slot `source` to slot `goal`."""
        for slab in (self.k, self.v):
            slab[:, goal, :, :length] = slab[:, source, :, :length]
