"""What goes first, what stays, and what is never mixed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from state_models import IDENTITY, ROW_BYTES, found, key, put, reader

from specdec import OptionError
from specdec.state import StateStore
from specdec.state.key import namespace


def store_of(tokens: int, page: int = 2) -> StateStore:
    return StateStore(tokens * ROW_BYTES, page_tokens=page)


def test_the_leaf_used_longest_ago_goes_first_from_its_end() -> None:
    store = store_of(12)
    for first in (1, 2, 3):
        put(store, [first, 5, 6, 7], call="act")
    assert found(store, [1, 5, 6, 7]) == 4  # the oldest is used again
    put(store, [4, 5])
    assert [found(store, [first, 5, 6, 7]) for first in (1, 2, 3)] == [4, 2, 4]


def test_a_shared_beginning_outlives_its_endings() -> None:
    store = store_of(10)
    put(store, [9, 9, 9, 9, 1, 1, 1])
    put(store, [9, 9, 9, 9, 2, 2, 2])
    assert store.tokens == 10
    put(store, [9, 9, 9, 9, 3, 3])
    assert found(store, [9, 9, 9, 9, 3, 3]) == 6
    assert found(store, [9, 9, 9, 9, 1, 1, 1]) < 7


def test_the_newest_branch_of_each_call_kind_outlives_older_ones_used_later() -> None:
    """An agent that asks "act" many times between two "sum" would lose the latter in a plain order of use."""
    store = store_of(12)
    put(store, [8, 8, 8, 8], call="sum")
    for first in range(1, 6):
        put(store, [first, 5, 5, 5], call="act")
    assert found(store, [8, 8, 8, 8]) == 4
    assert found(store, [5, 5, 5, 5]) == 4


def test_the_budget_is_kept_even_against_live_branches() -> None:
    store = store_of(6)
    put(store, [8, 8, 8, 8], call="sum")
    put(store, [1, 5, 5, 5, 5, 5], call="act")
    assert found(store, [1, 5, 5, 5, 5, 5]) == 6
    assert found(store, [8, 8, 8, 8]) == 0
    assert store.nbytes == store.max_bytes


def test_what_does_not_fit_is_kept_as_far_as_it_does() -> None:
    store = store_of(5)
    assert put(store, list(range(9))) == 4  # pages of two
    assert found(store, list(range(9))) == 4


def test_marks_are_branch_points() -> None:
    """Nodes end at marks, in the known part of a prompt too, so that use of the beginning is told from use of all."""
    store = store_of(40, page=10)
    put(store, [1, 2, 3, 4, 5, 6], marks=[4, 2, 6, 9, 0])
    [kept] = store.snapshot()
    assert kept.cuts == (2, 4, 6)
    kept.branch.release()
    put(store, [1, 2, 3, 4, 5, 6], marks=[3])
    [kept] = store.snapshot()
    assert kept.cuts == (2, 3, 4, 6)
    kept.branch.release()


def test_nothing_is_found_under_another_owner_model_dtype_or_adapter() -> None:
    store = store_of(40)
    put(store, [1, 2, 3])
    for other in (replace(IDENTITY, model="model-b"), replace(IDENTITY, dtype="bf16"), replace(IDENTITY, adapter="x")):
        with store.find(key(identity=other), [1, 2, 3]) as branch:
            assert branch.tokens == 0
    assert found(store, [1, 2, 3], "owner:b") == 0
    assert found(store, [1, 2, 3], "session:a") == 0
    assert namespace("a", None) == namespace("a", "s") != namespace(None, "a")
    assert namespace(None, None) is None


def test_tokens_of_a_gap_are_told_once() -> None:
    store = store_of(40)
    put(store, [1, 2, 3])
    put(store, [1, 2, 3, 4, 5, 6], ahead=True, call=None)
    assert found(store, [1, 2, 3, 4, 5, 6]) == 6  # looking is not using
    for prompt, expected in (([1, 2, 3, 4, 9], (4, 1)), ([1, 2, 3, 4, 5, 6], (6, 2)), ([1, 2, 3, 4, 5, 6], (6, 0))):
        branch, ahead = store.claim(key(), prompt)
        assert (branch.tokens, ahead) == expected
        branch.release()


def test_a_failed_copy_leaves_nothing_behind() -> None:
    store, tokens = store_of(40), [1, 2, 3, 4, 5, 6]

    def failing(start: int, stop: int):
        if start >= 4:
            raise MemoryError("no more")
        return reader(tokens)(start, stop)

    with pytest.raises(MemoryError):
        store.insert(key(), tokens, failing, ROW_BYTES)
    assert (store.nbytes, found(store, tokens)) == (0, 0)


def test_a_store_without_room_is_refused() -> None:
    for options in ({"max_bytes": 0}, {"max_bytes": 5, "page_tokens": 0}, {"max_bytes": True}, {"max_bytes": 1.5}):
        with pytest.raises(OptionError, match="a whole number of at least 1"):
            StateStore(**options)
