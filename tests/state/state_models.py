"""Rows that tell which prefix they belong to, and the naive store they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specdec.state import Branch, Rows, StateIdentity, StateKey, StateStore

IDENTITY = StateIdentity("model-a", "float32")
ROW_BYTES = 2 * 1 * (2 + 3) * 4  # layers, heads, dims of key and value, float32


def key(owner: str = "owner:a", identity: StateIdentity = IDENTITY) -> StateKey:
    return StateKey(owner, identity)


def rows_of(tokens: Sequence[int], salt: int = 0) -> Rows:
    """Row i follows from all tokens up to i, as keys and values do: a wrong split, order or parent shows."""
    state, values = salt, []
    for token in tokens:
        state = (state * 31 + token + 1) % 1_000_003
        values.append(float(state))
    column = torch.tensor(values)
    k = torch.stack([column, column + 0.5], -1).expand(2, 1, len(values), 2)
    v = torch.stack([column, -column, column * 2], -1).expand(2, 1, len(values), 3)
    return k, v


def reader(tokens: Sequence[int], salt: int = 0) -> Callable[[int, int], Rows]:
    k, v = rows_of(tokens, salt)
    return lambda start, stop: (k[:, :, start:stop].clone(), v[:, :, start:stop].clone())


def put(store: StateStore, tokens: Sequence[int], owner: str = "owner:a", salt: int = 0, **options) -> int:
    return store.insert(key(owner), tokens, reader(tokens, salt), ROW_BYTES, **options)


def found(store: StateStore, tokens: Sequence[int], owner: str = "owner:a", salt: int = 0) -> int:
    """How many first tokens are known; their rows are checked."""
    with store.find(key(owner), tokens) as branch:
        check(branch, tokens, salt)
        return branch.tokens


def check(branch: Branch, tokens: Sequence[int], salt: int = 0) -> None:
    if not branch.tokens:
        return
    for i, expected in enumerate(rows_of(tokens[: branch.tokens], salt)):
        assert torch.equal(torch.cat([segment.rows[i] for segment in branch.segments], 2), expected)


def longest(known: Sequence[Sequence[int]], tokens: Sequence[int]) -> int:
    """The naive look-up."""
    best = 0
    for one in known:
        n = 0
        while n < min(len(one), len(tokens)) and one[n] == tokens[n]:
            n += 1
        best = max(best, n)
    return best
