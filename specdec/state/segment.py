"""Rows that are written once and shared: blocks with a count of their holders, and views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

#: Keys [layers, heads, n, k_dim] and values [layers, heads, n, v_dim] of n tokens in a row.
Rows = tuple[Tensor, Tensor]


class Ledger:
    """Bytes of all blocks that somebody holds."""

    def __init__(self) -> None:
        self.nbytes = 0


class Block:
    """Keys and values of a few tokens; nobody writes them again. Freed when the last holder lets go."""

    def __init__(self, rows: Rows, ledger: Ledger) -> None:
        self.rows: Rows | None = rows
        self.nbytes = rows[0].nbytes + rows[1].nbytes
        self.holders = 0
        self._ledger = ledger
        ledger.nbytes += self.nbytes

    def hold(self) -> None:
        """One more holder."""
        self.holders += 1

    def drop(self) -> None:
        """One holder less; the last one frees the memory."""
        self.holders -= 1
        if self.holders == 0:
            self.rows = None
            self._ledger.nbytes -= self.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Rows `start` to `stop` of a block. Made by `whole` or `part`, which hold the block; `drop` it once."""

    block: Block
    start: int
    stop: int

    @classmethod
    def whole(cls, rows: Rows, ledger: Ledger) -> Segment:
        """A new block of these rows, and all of it."""
        return cls(Block(rows, ledger), 0, rows[0].shape[2]).part(0, rows[0].shape[2])

    @property
    def tokens(self) -> int:
        """Tokens whose rows these are."""
        return self.stop - self.start

    @property
    def rows(self) -> Rows:
        """Views of the rows; nothing is copied."""
        assert self.block.rows is not None  # noqa: S101  a holder's block is not freed
        k, v = self.block.rows
        return k[:, :, self.start : self.stop], v[:, :, self.start : self.stop]

    def part(self, start: int, stop: int) -> Segment:
        """Rows `start` to `stop` of these, held once more; nothing is copied."""
        self.block.hold()
        return Segment(self.block, self.start + start, self.start + stop)

    def drop(self) -> None:
        """Let go of the block."""
        self.block.drop()


def cropped(segments: Sequence[Segment], tokens: int) -> list[Segment]:
    """The first `tokens` tokens of segments in a row, held once more."""
    kept: list[Segment] = []
    for segment in segments:
        take = min(segment.tokens, tokens)
        if take <= 0:
            break
        kept.append(segment.part(0, take))
        tokens -= take
    return kept


class Branch:
    """The rows of a prompt's first tokens, held so that they stay while the tree changes. Release it, or use `with`."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = [segment.part(0, segment.tokens) for segment in segments]

    @property
    def tokens(self) -> int:
        """Tokens from the prompt's first on."""
        return sum(segment.tokens for segment in self.segments)

    def fork(self) -> Branch:
        """The same rows, held once more; nothing is copied."""
        return Branch(self.segments)

    def crop(self, tokens: int) -> Branch:
        """The rows of the first `tokens` tokens, held once more; nothing is copied."""
        held = cropped(self.segments, tokens)
        branch = Branch(held)
        for segment in held:
            segment.drop()
        return branch

    def release(self) -> None:
        """Let go of the rows; calling it again does nothing."""
        for segment in self.segments:
            segment.drop()
        self.segments = []

    def __enter__(self) -> Branch:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
