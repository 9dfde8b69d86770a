"""The store against a list of all prompts: what it finds, what it holds, and that rows are those of the prefix."""

from __future__ import annotations

import state_models as models
from hypothesis import given, settings
from hypothesis import strategies as st
from state_models import ROW_BYTES, check, found, longest, put

from specdec.state import Branch, StateStore

PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=12)
OWNER = st.sampled_from(["owner:a", "session:a", "owner:b"])
MARKS = st.lists(st.integers(0, 14), max_size=3)
STEP = st.tuples(PROMPT, OWNER, MARKS, st.sampled_from(["act", "sum"]))


@given(st.lists(STEP, max_size=14), st.integers(1, 5), PROMPT)
def test_without_pressure_the_store_is_the_list_of_prompts(steps, page, probe) -> None:
    store, known = StateStore(1 << 20, page_tokens=page), {}
    for tokens, owner, marks, call in steps:
        mine = known.setdefault(owner, [])
        before = longest(mine, tokens)
        assert found(store, tokens, owner, salt=len(owner)) == before
        assert put(store, tokens, owner, salt=len(owner), marks=marks, call=call) == len(tokens) - before
        mine.append(tokens)
        prefixes = {(name, tuple(one[:n])) for name, all_ in known.items() for one in all_ for n in range(1, 13)}
        distinct = {(name, prefix) for name, prefix in prefixes if prefix}
        assert store.tokens == len(distinct)
        assert store.nbytes == store.tokens * ROW_BYTES  # shared tokens are held once, split or not
    for owner in ("owner:a", "session:a", "owner:b"):
        assert found(store, probe, owner, salt=len(owner)) == longest(known.get(owner, []), probe)


@settings(max_examples=200)
@given(st.lists(STEP, max_size=20), st.integers(1, 4), st.integers(1, 30))
def test_under_any_budget_bytes_stay_below_and_rows_stay_right(steps, page, room) -> None:
    """The newest prompt is there as far as the budget has room for it, whatever had to go."""
    store, known = StateStore(room * ROW_BYTES, page_tokens=page), {}
    for tokens, owner, marks, call in steps:
        mine = known.setdefault(owner, [])
        mine.append(tokens)
        read, peaks = models.reader(tokens, len(owner)), []

        def watched(start, stop, read=read, peaks=peaks):
            rows = read(start, stop)
            peaks.append(store.nbytes + rows[0].nbytes + rows[1].nbytes)
            return rows

        store.insert(models.key(owner), tokens, watched, ROW_BYTES, call=call, marks=marks)
        assert max(peaks, default=0) <= store.max_bytes
        assert store.nbytes <= store.max_bytes
        kept = found(store, tokens, owner, len(owner))
        assert kept > len(tokens) - page or kept >= room - 2 * page  # split blocks may hold a page's worth
        for name, all_ in known.items():
            for one in all_:
                assert found(store, one, name, len(name)) <= longest(all_, one)
    store.forget("owner:a")
    store.forget("owner:b")
    store.forget("session:a")
    assert (store.nbytes, store.tokens, store.keys) == (0, 0, [])


@given(st.lists(STEP, min_size=1, max_size=12), st.data())
def test_forks_and_crops_stay_readable_while_the_tree_changes(steps, data) -> None:
    """Held rows are neither copied nor lost when their nodes are split or evicted, and count until released."""
    store, held = StateStore(14 * ROW_BYTES, page_tokens=2), []
    for tokens, owner, marks, call in steps:
        put(store, tokens, owner, len(owner), marks=marks, call=call)
        branch = store.find(models.key(owner), tokens)
        if data.draw(st.booleans()):
            cropped = branch.crop(data.draw(st.integers(0, branch.tokens)))
            assert blocks(cropped) <= blocks(branch)
            branch.release()
            branch = cropped
        fork = branch.fork()
        assert blocks(fork) == blocks(branch)
        if data.draw(st.booleans()):
            branch.release()
            branch = fork
        else:
            fork.release()
        held.append((branch, tokens, len(owner)))
        for one, its, salt in held:
            check(one, its, salt)
        assert store.nbytes <= store.max_bytes
    for owner in ("owner:a", "session:a", "owner:b"):
        store.forget(owner)
    for one, its, salt in held:
        check(one, its, salt)
        one.release()
        one.release()
    assert store.nbytes == 0


def blocks(branch: Branch) -> set[int]:
    return {id(segment.block) for segment in branch.segments}
