"""The key-value slabs against a dictionary: what was written last for (slot, row) is what is read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec import CapacityError
from specdec.kvcache import KVCache, Place

LAYERS, SLOTS, HEADS, ROWS, K_DIM, V_DIM = 2, 5, 2, 16, 3, 4


def _cache() -> KVCache:
    return KVCache(layers=LAYERS, slots=SLOTS, heads=HEADS, rows=ROWS, k_dim=K_DIM, v_dim=V_DIM)


class Model:
    """The naive one: a number for each (slot, row), spread over layers, heads and dims."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], float] = {}
        self.count = 0.0

    def write(self, cache: KVCache, slots: list[int], starts: list[int], nodes: int) -> Place:
        place = cache.place(torch.tensor(slots), torch.tensor(starts), nodes)
        base = torch.empty(len(slots), nodes)
        for b, (slot, start) in enumerate(zip(slots, starts, strict=True)):
            for i in range(nodes):
                self.count += 1
                base[b, i] = self.cells[slot, start + i] = self.count
        for layer in range(LAYERS):
            cache.write(layer, place, _spread(base, layer, K_DIM), _spread(base, layer, V_DIM))
        return place

    def check(self, cache: KVCache, slots: list[int], rows: list[int]) -> None:
        """Compare the first rows of each slot with the dictionary."""
        starts = torch.tensor([max(n - 1, 0) for n in rows])
        place = cache.place(torch.tensor(slots), starts, 1)
        for layer in range(LAYERS):
            k, v = cache.view(layer, place)
            assert k.shape == (len(slots), HEADS, place.span, K_DIM)
            assert v.shape == (len(slots), HEADS, place.span, V_DIM)
            for b, slot in enumerate(slots):
                known = torch.tensor([[self.cells[slot, r] for r in range(rows[b])]])
                assert torch.equal(k[b : b + 1, :, : rows[b]], _spread(known, layer, K_DIM))
                assert torch.equal(v[b : b + 1, :, : rows[b]], _spread(known, layer, V_DIM))


def _spread(base: Tensor, layer: int, dim: int) -> Tensor:
    """Make [B, heads, N, dim] of [B, N], each entry its own."""
    parts = torch.arange(HEADS)[:, None] * 10 + torch.arange(dim)
    return base[:, None, :, None] * 1000 + layer * 100 + parts[None, :, None]


SLOT_LISTS = st.one_of(
    st.integers(0, SLOTS - 2).flatmap(lambda first: st.just([first, first + 1])),
    st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True),
)


@given(SLOT_LISTS, st.data())
def test_writes_are_read_back_from_slots_in_any_order(slots: list[int], data: st.DataObject) -> None:
    """Consecutive slots and a common start take slices, the rest take indices; both are the dictionary."""
    cache, model = _cache(), Model()
    lengths = dict.fromkeys(range(SLOTS), 0)
    for _ in range(3):
        nodes = data.draw(st.integers(1, 4))
        starts = [data.draw(st.integers(0, lengths[slot])) for slot in slots]
        model.write(cache, slots, starts, nodes)
        for slot, start in zip(slots, starts, strict=True):
            lengths[slot] = max(lengths[slot], start + nodes)
    model.check(cache, slots, [lengths[slot] for slot in slots])


@given(SLOT_LISTS, st.integers(1, 6), st.data())
def test_keep_moves_a_path_to_the_front_and_no_other_slot(slots: list[int], nodes: int, data: st.DataObject) -> None:
    cache, model = _cache(), Model()
    starts = [data.draw(st.integers(0, 4)) for _ in slots]
    everyone = list(range(SLOTS))
    model.write(cache, everyone, [0] * SLOTS, 5)
    model.write(cache, slots, starts, nodes)
    paths = [[0, *sorted(data.draw(st.sets(st.integers(1, nodes - 1))))] if nodes > 1 else [0] for _ in slots]
    padded = torch.tensor([path + [-1] * (nodes - len(path)) for path in paths])
    cache.keep(torch.tensor(slots), torch.tensor(starts), padded)
    kept = dict.fromkeys(everyone, 5)
    before = dict(model.cells)
    for slot, start, path in zip(slots, starts, paths, strict=True):
        for goal, node in enumerate(path):
            model.cells[slot, start + goal] = before[slot, start + node]
        kept[slot] = start + len(path)
    model.check(cache, everyone, [kept[slot] for slot in everyone])


@given(st.permutations(range(SLOTS)), st.integers(0, 6))
def test_a_fork_copies_rows_and_stays_apart_afterwards(order: list[int], length: int) -> None:
    source, goal = order[:2]
    cache, model = _cache(), Model()
    model.write(cache, list(range(SLOTS)), [0] * SLOTS, 6)
    cache.fork(source, goal, length)
    for row in range(length):
        model.cells[goal, row] = model.cells[source, row]
    model.write(cache, [source], [0], 2)
    model.check(cache, list(range(SLOTS)), [6] * SLOTS)


@pytest.mark.parametrize("slots", [[1, 2], [3, 0]], ids=["consecutive", "scattered"])
@pytest.mark.parametrize("length", [1, 3])
def test_a_rollback_of_n_rows_keeps_the_rest(slots: list[int], length: int) -> None:
    """Dropping 0 rows keeps all and dropping all keeps none; a crop of 0 kept everything in another library."""
    for dropped in range(length + 1):
        cache, model = _cache(), Model()
        model.write(cache, slots, [0, 0], length)
        model.write(cache, slots, [length - dropped] * 2, 2)
        model.check(cache, slots, [length - dropped + 2] * 2)


@pytest.mark.parametrize("start", [[-1, -1], [-2, 0], [0, -1]])
@pytest.mark.parametrize("slots", [[1, 2], [3, 0]], ids=["consecutive", "scattered"])
def test_a_rollback_past_the_start_is_refused(slots: list[int], start: list[int]) -> None:
    """A negative row would name the end of the slab."""
    with pytest.raises(CapacityError, match=r"rows -\d to"):
        _cache().place(torch.tensor(slots), torch.tensor(start), 2)


def test_rows_past_the_end_of_a_slot_are_refused_with_the_numbers() -> None:
    with pytest.raises(CapacityError, match="rows 14 to 16 of a slot were asked for; a slot has rows 0 to 15"):
        _cache().place(torch.tensor([0]), torch.tensor([14]), 3)


def test_consecutive_slots_are_read_without_a_copy() -> None:
    cache = _cache()
    k, _ = cache.view(1, cache.place(torch.tensor([2, 3]), torch.tensor([4, 1]), 2))
    assert k.data_ptr() == cache.k[1, 2].data_ptr()
    assert k.shape[2] == 6


def test_values_are_as_wide_as_keys_unless_told() -> None:
    cache = KVCache(layers=1, slots=1, heads=1, rows=2, k_dim=3)
    assert (cache.v.shape[-1], cache.rows, cache.nbytes) == (3, 2, 48)
