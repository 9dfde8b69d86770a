"""An engine that keeps state says what one without says, and counts what it did not prefill."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import CompositionError, ContractError, Engine, OptionError, Request, SamplingParams
from specdec.testing import TableTarget, TinyTarget

TOKEN_BYTES = 2 * 4 * 16 * 8  # layers, heads, dims of key and value, float64
TARGET = {"slots": 4, "max_len": 96, "max_budget": 8}
FIXED = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]


def engine(drafter: str = "none", state_bytes: int = 1 << 20, **options) -> Engine:
    return Engine(TinyTarget(**TARGET), drafter, state_bytes=state_bytes, **options)


def ask(on: Engine, prompt: list[int], *, max_tokens: int = 8, temperature: float = 0.8, **options):
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=3)
    [answer] = on.session([Request(prompt, params, **options)]).run()
    return answer


def counts(answer) -> tuple[int, int, int]:
    stats = answer.stats
    return stats.reused_tokens, stats.gap_tokens, stats.prompt_tokens


PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(lambda tail: FIXED + tail)
ASKED = st.lists(st.tuples(PROMPT, st.sampled_from(["a", "b", None]), st.sampled_from(["act", "sum"])), max_size=6)


@settings(max_examples=30, deadline=None)
@given(st.lists(ASKED, min_size=1, max_size=4), st.sampled_from([1, 20, 70, 500]), st.sampled_from(["none", "ngram"]))
def test_tokens_are_those_of_an_engine_that_keeps_nothing(batches, room, drafter) -> None:
    """Batches of prompts with common beginnings, of several sessions, with and without room for their state."""
    plain, keeping = engine(state_bytes=0), engine(drafter, room * TOKEN_BYTES)
    for batch in batches:
        params = SamplingParams(max_tokens=6, temperature=0.9, seed=5)
        asked = [Request(prompt, params, session=session, call=call) for prompt, session, call in batch]
        expected, found = plain.session(asked).run(), keeping.session(asked).run()
        assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
        assert keeping.state.nbytes <= room * TOKEN_BYTES


def test_rows_are_copied_bit_by_bit_from_an_own_prefill() -> None:
    on = engine()
    ask(on, [*FIXED, 1, 2], session="a", max_tokens=1)
    fresh = TinyTarget(**TARGET)
    fresh.open(torch.tensor([2]), [torch.tensor([*FIXED, 1, 2])])
    with on.state.store.find(on.state.key(None, "a"), [*FIXED, 1, 2]) as branch:
        for kept, own in zip(branch.segments[0].rows, fresh.take_rows(2, 0, 16), strict=True):
            assert torch.equal(kept, own)
    on.target.close(torch.arange(4))  # what slots held is gone
    session = on.session([Request([*FIXED, 1, 2, 8], SamplingParams(max_tokens=4), session="a")])
    assert session.active
    for kept, own in zip(on.target.take_rows(0, 0, 16), fresh.take_rows(2, 0, 16), strict=True):
        assert torch.equal(kept, own)
    session.close()


def test_counts_say_what_was_reused() -> None:
    on = engine()
    assert counts(ask(on, [*FIXED, 1, 2], session="a")) == (0, 0, 16)
    assert counts(ask(on, [*FIXED, 1, 7, 7], session="a")) == (15, 0, 17)
    assert counts(ask(on, [*FIXED, 1, 2], session="a")) == (15, 0, 16)  # the last token is always scored
    assert counts(ask(on, [*FIXED, 1, 2, 3], session="a")) == (16, 0, 17)
    assert counts(ask(on, [4], session="a")) == (0, 0, 1)


def test_answers_are_not_kept_since_no_prefill_wrote_their_rows() -> None:
    on = engine()
    answer = ask(on, FIXED, session="a")
    assert counts(ask(on, [*FIXED, *answer.tokens, 1], session="a"))[0] == len(FIXED)


def test_nothing_crosses_owners_or_sessions() -> None:
    on = engine()
    ask(on, FIXED, session="a", owner="x")
    ask(on, FIXED, session="a")
    ask(on, FIXED)  # belongs to nobody: neither kept nor found
    last = len(FIXED) - 1
    for options, expected in (
        ({"session": "b", "owner": "x"}, last),
        ({"owner": "x"}, last),
        ({"session": "a"}, last),
        ({"session": "b"}, 0),
        ({"session": "x"}, 0),
        ({"owner": "a"}, 0),
        ({"session": "a", "owner": "y"}, 0),
        ({}, 0),
        ({}, 0),
    ):
        assert counts(ask(on, FIXED, **options))[0] == expected, options
    on.state.forget(owner="x")
    assert counts(ask(on, FIXED, owner="x"))[0] == 0
    with pytest.raises(OptionError, match="neither owner nor session"):
        on.state.forget()


def test_two_call_kinds_in_turn_keep_a_branch_each() -> None:
    """Room for two prompts: a store of the last request alone would reuse nothing here."""
    on, reused = engine(state_bytes=50 * TOKEN_BYTES), []
    for step in range(4):
        for call, head in (("act", 1), ("sum", 2)):
            prompt = [head, *FIXED, *[step] * 8]
            reused.append(counts(ask(on, prompt, session="a", call=call, marks=[15]))[0])
            assert on.state.nbytes <= 50 * TOKEN_BYTES
    assert reused == [0, 0, 15, 15, 15, 15, 15, 15]


def test_eviction_under_load_changes_no_token() -> None:
    """Forty prompts of three owners through a store with room for less than two, in sessions of three rows."""
    on, plain = engine("ngram", 30 * TOKEN_BYTES), engine(state_bytes=0)
    params = SamplingParams(max_tokens=5)
    asked = [Request([n % 4, *FIXED, n % 7, n], params, owner=f"o{n % 3}") for n in range(36)]
    for at in range(0, len(asked), 3):
        found, expected = on.session(asked[at : at + 3]).run(), plain.session(asked[at : at + 3]).run()
        assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
        assert 0 < on.state.nbytes <= 30 * TOKEN_BYTES


def test_several_completions_of_a_prompt_share_its_rows() -> None:
    on, plain = engine(), engine(state_bytes=0)
    params = SamplingParams(max_tokens=5, n=3, seed=1, temperature=1.0)
    for _ in range(2):
        asked = [Request(FIXED, params, session="a")]
        found = on.session(asked).run()
        assert [answer.tokens for answer in found] == [answer.tokens for answer in plain.session(asked).run()]
    assert on.state.store.tokens == len(FIXED)
    assert [answer.stats.reused_tokens for answer in found] == [len(FIXED) - 1] * 3


def test_an_aborted_request_leaves_the_rows_of_its_prompt() -> None:
    on = engine()
    session = on.session([Request(FIXED, SamplingParams(max_tokens=50), session="a", id="r")])
    session.step()
    on.abort("r")
    session.run()
    assert counts(ask(on, [*FIXED, 1], session="a"))[0] == len(FIXED)
    waiting = on.session([Request([7] * 9, SamplingParams(), session="a")])
    waiting.close()  # never admitted, so it has no rows
    assert counts(ask(on, [7] * 9, session="a"))[0] == 0


class Failing(TinyTarget):
    fail = False

    def resume(self, slots, prompts, cached):
        scores = super().resume(slots, prompts, cached)
        if self.fail:
            raise RuntimeError("prefill failed")
        return scores


def test_a_failed_prefill_leaves_no_rows() -> None:
    """Rows of a prefill that did not end may be missing or wrong."""
    target = Failing(**TARGET)
    on = Engine(target, state_bytes=1 << 20)
    target.fail = True
    with pytest.raises(RuntimeError, match="prefill failed"):
        ask(on, FIXED, session="a")
    target.fail = False
    assert (on.state.nbytes, on.free_slots) == (0, 4)
    assert counts(ask(on, FIXED, session="a"))[0] == 0


class NotANumber(TinyTarget):
    def open(self, slots, prompts):
        scores = super().open(slots, prompts)
        scores.logits[:] = torch.nan
        return scores


def test_check_mode_still_checks_prefills_and_gives_the_same() -> None:
    on = engine(check=True)
    prompts = [[*FIXED, 1], [*FIXED, 2]]
    assert [ask(on, p, session="a").tokens for p in prompts] == [ask(engine(state_bytes=0), p).tokens for p in prompts]
    with pytest.raises(ContractError, match="not numbers"):
        ask(Engine(NotANumber(**TARGET), state_bytes=1 << 20, check=True), FIXED, session="a")


def test_an_agent_goes_on_after_a_restart(tmp_path) -> None:
    before, after = engine(), engine()
    ask(before, FIXED, session="a")
    ask(before, FIXED, owner="x")
    assert before.state.save(tmp_path / "state", session="a") > 0
    assert after.state.load(tmp_path / "state") == len(FIXED)
    again, plain = ask(after, [*FIXED, 1], session="a"), ask(engine(state_bytes=0), [*FIXED, 1])
    assert (counts(again)[0], again.tokens) == (len(FIXED), plain.tokens)
    assert counts(ask(after, FIXED, owner="x"))[0] == 0
    other = Engine(TinyTarget(**TARGET, seed=1), state_bytes=1 << 20)
    with pytest.raises(OptionError, match="holds state of model"):
        other.state.load(tmp_path / "state")


def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    with pytest.raises(CompositionError, match="state_bytes=9 was asked for; TableTarget cannot take up"):
        Engine(TableTarget(torch.eye(5)), state_bytes=9)
    with pytest.raises(OptionError, match=f"one token's keys and values take {TOKEN_BYTES} bytes"):
        engine(state_bytes=TOKEN_BYTES - 1)
    for value in (-1, True, 1.5, "1 GB"):
        with pytest.raises(OptionError, match="state_bytes is a whole number"):
            engine(state_bytes=value)
    on = engine()
    for options, message in (
        ({"marks": [15]}, "marks holds 15; the prompt has 14 tokens"),
        ({"marks": [True]}, "marks holds True"),
        ({"session": 3}, "session is a string"),
        ({"owner": 3}, "owner is a string"),
        ({"call": None}, "call is a string"),
    ):
        with pytest.raises(OptionError, match=message):
            ask(on, FIXED, **options)
    assert engine(state_bytes=0).state is None
