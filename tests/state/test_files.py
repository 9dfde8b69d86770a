"""Saved state: what comes back, what is refused and why, and that a file is whole or not there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from state_models import IDENTITY, found, put, rows_of

from specdec import OptionError
from specdec.state import StateStore, files

LIKE = rows_of([])
PROMPTS = ([1, 2, 3, 4, 5], [1, 2, 3, 9, 9], [7, 7])


def full(page: int = 2) -> StateStore:
    store = StateStore(1 << 20, page_tokens=page)
    for tokens, call in zip(PROMPTS, ("act", "sum", "act"), strict=True):
        put(store, tokens, call=call, marks=[2])
    put(store, PROMPTS[0], "session:b", salt=5)
    return store


def test_a_store_comes_back_in_any_page_size(tmp_path) -> None:
    store = full()
    assert files.save(store, tmp_path / "deep" / "s.safetensors", IDENTITY) > 0
    for page in (1, 3, 64):
        again = StateStore(1 << 20, page_tokens=page)
        assert files.load(again, tmp_path / "deep" / "s.safetensors", IDENTITY, LIKE) == store.tokens
        assert (again.tokens, again.nbytes, set(again.keys)) == (store.tokens, store.nbytes, set(store.keys))
        assert [found(again, tokens) for tokens in PROMPTS] == [5, 5, 2]
        assert found(again, PROMPTS[0], "session:b", salt=5) == 5
        assert {(k.tokens, k.calls) for k in again.snapshot()} == {(k.tokens, k.calls) for k in store.snapshot()}


PROMPT_LISTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(prompts=PROMPT_LISTS, room=st.integers(1, 20))
def test_any_store_comes_back_as_far_as_there_is_room(tmp_path, prompts, room) -> None:
    store = StateStore(1 << 20, page_tokens=3)
    for tokens in prompts:
        put(store, tokens)
    files.save(store, tmp_path / "s", IDENTITY)
    again, small = StateStore(1 << 20, page_tokens=2), StateStore(room * 40, page_tokens=2)
    files.load(again, tmp_path / "s", IDENTITY, LIKE)
    files.load(small, tmp_path / "s", IDENTITY, LIKE)
    assert small.nbytes <= small.max_bytes
    for tokens in prompts:
        assert found(again, tokens) == len(tokens)
        assert found(small, tokens) <= len(tokens)


def test_one_owner_is_saved_alone(tmp_path) -> None:
    files.save(full(), tmp_path / "s", IDENTITY, "session:b")
    again = StateStore(1 << 20)
    assert files.load(again, tmp_path / "s", IDENTITY, LIKE) == 5
    assert [key.owner for key in again.keys] == ["session:b"]


def test_a_shared_beginning_is_written_once(tmp_path) -> None:
    files.save(full(), tmp_path / "s", IDENTITY)
    with safe_open(str(tmp_path / "s"), framework="pt") as file:
        rows = sum(file.get_tensor(name).shape[2] for name in file.keys() if name.startswith("k."))  # noqa: SIM118
    assert rows == full().tokens


@pytest.mark.parametrize("field", ["model", "dtype", "adapter"])
def test_state_of_another_model_is_refused_by_name(tmp_path, field) -> None:
    files.save(full(), tmp_path / "s", IDENTITY)
    store = StateStore(1 << 20)
    with pytest.raises(OptionError, match=f"holds state of {field} '.*'; this engine's {field} is 'other'"):
        files.load(store, tmp_path / "s", replace(IDENTITY, **{field: "other"}), LIKE)
    assert store.tokens == 0


def test_rows_of_another_shape_or_type_are_refused(tmp_path) -> None:
    files.save(full(), tmp_path / "s", IDENTITY)
    for like in ((LIKE[0].double(), LIKE[1].double()), (LIKE[0][:1], LIKE[1][:1]), (LIKE[1], LIKE[1])):
        store = StateStore(1 << 20)
        with pytest.raises(OptionError, match="holds rows"):
            files.load(store, tmp_path / "s", IDENTITY, like)
        assert store.tokens == 0


def broken(path) -> list[bytes]:
    whole = path.read_bytes()
    return [b"", whole[:5], whole[:200], whole[:-9], b"{}" * 90]


def test_a_broken_file_is_refused_and_adds_nothing(tmp_path) -> None:
    files.save(full(), tmp_path / "s", IDENTITY)
    for content in broken(tmp_path / "s"):
        (tmp_path / "t").write_bytes(content)
        store = StateStore(1 << 20)
        with pytest.raises(OptionError, match="was to be read as saved state"):
            files.load(store, tmp_path / "t", IDENTITY, LIKE)
        assert store.tokens == 0
    with pytest.raises(OptionError, match="was to be read as saved state"):
        files.load(StateStore(9), tmp_path / "absent", IDENTITY, LIKE)


def _spoil_page(branches, tensors) -> None:
    branches[0]["pages"].append(99)


def _spoil_owner(branches, tensors) -> None:
    branches[0]["owner"] = 3


def _spoil_tokens(branches, tensors) -> None:
    tensors["tokens.0"] = tensors["tokens.0"][:-1].clone()


def _spoil_empty(branches, tensors) -> None:
    branches[0]["pages"] = []


@pytest.mark.parametrize("spoil", [_spoil_page, _spoil_owner, _spoil_tokens, _spoil_empty])
def test_a_table_that_does_not_fit_its_rows_is_refused(tmp_path, spoil) -> None:
    files.save(full(), tmp_path / "s", IDENTITY)
    with safe_open(str(tmp_path / "s"), framework="pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    branches = json.loads(header["branches"])
    spoil(branches, tensors)
    save_file(tensors, tmp_path / "t", {**header, "branches": json.dumps(branches)})
    store = StateStore(1 << 20)
    with pytest.raises(OptionError, match="branch"):
        files.load(store, tmp_path / "t", IDENTITY, LIKE)
    assert store.tokens == 0


def test_a_file_of_something_else_is_refused(tmp_path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "t")
    with pytest.raises(OptionError, match="its format is None"):
        files.load(StateStore(9), tmp_path / "t", IDENTITY, LIKE)


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch) -> None:
    files.save(full(), tmp_path / "s", IDENTITY)
    before = (tmp_path / "s").read_bytes()

    def torn(tensors, path, header) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    store = full()
    put(store, [3, 3, 3])
    size = store.nbytes
    monkeypatch.setattr(files, "save_file", torn)
    with pytest.raises(OSError, match="disk full"):
        files.save(store, tmp_path / "s", IDENTITY)
    assert (tmp_path / "s").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    for owner in ("owner:a", "session:b"):
        store.forget(owner)
    assert (size > 0, store.nbytes) == (True, 0)  # a save holds rows only while it runs


def test_only_its_user_may_read_a_saved_file(tmp_path) -> None:
    files.save(full(), tmp_path / "s", IDENTITY)
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0
