"""Sessions: the verbs one by one, rows that come and go, and slots."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from specdec_drafters.draft_model import DraftModel
from specdec_drafters.ngram import Ngram
from torch import Tensor

from specdec import CapacityError, ContractError, Engine, Request, SamplingParams
from specdec.engine.slots import SlotPool
from specdec.testing import Echo, RandomTree, SlowDrafter, TinyTarget
from specdec.types import Completion, Context, Draft

PROMPTS = [[1, 5, 9, 2], [3, 3, 8], [2], [9, 8, 9, 8]]


def plain(prompt: list[int], params: SamplingParams) -> list[int]:
    [out] = Engine(TinyTarget(), "none").generate([prompt], params)
    return out.tokens


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("budget", [None, 1, 3, 6])
def test_the_verbs_one_by_one_are_the_step(budget: int | None, temperature: float) -> None:
    params = SamplingParams(max_tokens=17, temperature=temperature, seed=2, frequency_penalty=0.4, logprobs=1)
    engine = Engine(TinyTarget(slots=2), RandomTree(narrow=5), budget=6, check=True)
    session = engine.session([Request(prompt, params) for prompt in PROMPTS])
    told: dict[str, list[int]] = {}
    while session.active:
        draft = session.propose(budget)
        scores = session.score(draft)
        verdict = session.accept(draft, scores)
        for news in session.commit(draft, verdict):
            told.setdefault(news.id, []).extend(news.tokens)
    got = session.take_completions()
    assert [out.tokens for out in got] == [plain(prompt, params) for prompt in PROMPTS]
    assert [told[out.id] for out in got] == [out.tokens for out in got]
    assert engine.free_slots == 2


@pytest.mark.parametrize("budget", [2, 5])
def test_a_custom_decoder_may_mask_what_its_grammar_forbids(budget: int) -> None:
    def decode(engine: Engine, nodes: int) -> tuple[list[int], list[float]]:
        session = engine.session([Request([1, 5, 9, 2], SamplingParams(max_tokens=20, logprobs=0))])
        while session.active:
            draft = session.propose(nodes)
            allowed = (torch.arange(37) % 3 == 0).expand(*draft.tokens.shape, 37)
            scores = session.score(draft).masked(allowed)
            session.commit(draft, session.accept(draft, scores))
        [out] = session.take_completions()
        assert out.logprobs is not None
        return out.tokens, [entry.logprob for entry in out.logprobs]

    tokens, logprobs = decode(Engine(TinyTarget(), "none"), 1)
    drafted, drafted_logprobs = decode(Engine(TinyTarget(), DraftModel(TinyTarget()), budget=8), budget)
    assert all(token % 3 == 0 for token in tokens[1:])
    assert drafted == tokens
    assert drafted_logprobs == pytest.approx(logprobs, abs=1e-5)


def test_processors_and_stops_hold_when_verbs_are_called_one_by_one() -> None:
    calls: list[int] = []

    def note(tokens: list[int], logits: Tensor) -> Tensor:
        calls.append(len(tokens))
        return logits

    want = plain([2], SamplingParams(max_tokens=12))
    params = SamplingParams(max_tokens=12, logits_processors=[note], stop_token_ids=[want[6]])
    session = Engine(TinyTarget(), Echo({(2,): want}), budget=5).session([Request([2], params)])
    while session.active:
        draft = session.propose()
        session.commit(draft, session.accept(draft, session.score(draft)))
    [out] = session.take_completions()
    assert out.tokens == want[: want.index(want[6]) + 1]
    assert calls == list(range(1, len(out.tokens) + 1))


def test_a_verb_without_rows_says_so() -> None:
    session = Engine(TinyTarget(), "none").session()
    with pytest.raises(ContractError, match="a verb was called on a session without rows"):
        session.propose()
    with pytest.raises(ContractError, match=r"Loop while session\.active"):
        _ = session.ctx
    assert session.step() == []
    assert session.run() == []


def test_a_finished_row_s_slot_is_used_in_the_next_round() -> None:
    seen: list[int] = []

    class Notes(Ngram):
        def propose(self, ctx: Context) -> Draft:
            seen.append(len(ctx.slots))
            return super().propose(ctx)

    engine = Engine(TinyTarget(slots=2), Notes(), budget=2)
    session = engine.session(
        [Request([1], SamplingParams(max_tokens=40)), *(Request([i], SamplingParams(max_tokens=5)) for i in range(6))]
    )
    got = session.run()
    assert [len(out.tokens) for out in got] == [40, 5, 5, 5, 5, 5, 5]
    busy = seen.index(1)
    assert set(seen[:busy]) == {2}
    assert set(seen[busy:]) == {1}


def test_completions_keep_the_order_of_the_requests_whatever_ends_first() -> None:
    lengths = [9, 1, 30, 0, 4]
    engine = Engine(TinyTarget(slots=3), "ngram", budget=4)
    got = engine.generate([[i] for i in range(5)], [SamplingParams(max_tokens=n) for n in lengths])
    assert [len(out.tokens) for out in got] == lengths
    assert [out.id for out in got] == sorted((out.id for out in got), key=lambda name: int(name.split("-")[1]))


def test_a_request_may_join_while_others_are_decoded() -> None:
    params = SamplingParams(max_tokens=20, temperature=0.7, seed=4)
    engine = Engine(TinyTarget(), RandomTree(narrow=5), budget=4)
    session = engine.session([Request([1, 2], params, id="early")])
    for _ in range(3):
        session.step()
    assert session.add(Request([3], params, id="late")) == ["late"]
    got = {out.id: out.tokens for out in session.run()}
    assert got == {"early": plain([1, 2], params), "late": plain([3], params)}


def test_two_sessions_share_the_slots_and_keep_to_themselves() -> None:
    params = SamplingParams(max_tokens=18, temperature=0.7, seed=4)
    engine = Engine(TinyTarget(slots=3), DraftModel(TinyTarget(slots=3)), budget=4, check=True)
    one = engine.session([Request(PROMPTS[0], params), Request(PROMPTS[1], params)])
    two = engine.session([Request(PROMPTS[2], params)])
    for _ in range(4):
        one.step()
        two.step()
    assert engine.free_slots == 0
    got = [*one.run(), *two.run()]
    assert [out.tokens for out in got] == [plain(prompt, params) for prompt in PROMPTS[:3]]
    assert engine.free_slots == 3


def test_waiting_for_slots_that_another_session_holds_says_so() -> None:
    engine = Engine(TinyTarget(slots=1), "none")
    holder = engine.session([Request([1])])
    holder.step()
    waiting = engine.session([Request([2]), Request([3])])
    with pytest.raises(CapacityError, match="2 requests wait; all 1 slots are held by other sessions"):
        waiting.step()
    holder.close()
    assert len(waiting.run()) == 2


def test_closing_frees_the_slots_and_may_be_done_twice() -> None:
    engine = Engine(TinyTarget(slots=2), "ngram")
    session = engine.session([Request([i], id=f"r{i}") for i in range(4)])
    session.step()
    session.close()
    session.close()
    assert engine.free_slots == 2
    assert [(out.id, out.finish_reason) for out in session.take_completions()] == [(f"r{i}", "abort") for i in range(4)]
    assert not session.active
    with pytest.raises(ContractError, match="closed session"):
        session.add(Request([1]))


def test_an_abort_from_another_thread_ends_the_request_and_no_other() -> None:
    engine = Engine(TinyTarget(), SlowDrafter(Ngram(), 0.01), budget=2)
    session = engine.session(
        [
            Request([1], SamplingParams(max_tokens=250), id="long"),
            Request([2], SamplingParams(max_tokens=30), id="short"),
        ]
    )
    done: list[Completion] = []
    worker = threading.Thread(target=lambda: done.extend(session.run()))
    worker.start()
    time.sleep(0.05)
    engine.abort("long")
    worker.join(timeout=30)
    assert not worker.is_alive()
    assert [(out.id, out.finish_reason) for out in done] == [("long", "abort"), ("short", "length")]
    assert done[1].tokens == plain([2], SamplingParams(max_tokens=30))
    assert engine.free_slots == 8


def test_an_abort_ends_all_completions_of_a_request_or_one() -> None:
    """The id a user gave to a request with n completions named none of them."""
    engine = Engine(TinyTarget(), "ngram")
    params = SamplingParams(max_tokens=50, n=2, temperature=1.0, seed=1)
    session = engine.session([Request([1], params, id="a"), Request([2], params, id="b")])
    session.step()
    engine.abort("a")
    engine.abort("b.1")
    reasons = {out.id: out.finish_reason for out in session.run()}
    assert reasons == {"a.0": "abort", "a.1": "abort", "b.0": "length", "b.1": "abort"}


def test_an_abort_of_an_unknown_id_touches_no_later_request() -> None:
    """An id that was aborted after its end stayed on a list, and the next request of that id was cut off."""
    engine = Engine(TinyTarget(), "none")
    session = engine.session([Request([1], SamplingParams(max_tokens=4), id="a")])
    session.step()
    session.abort("b")
    session.step()
    session.add(Request([2], SamplingParams(max_tokens=4), id="b"))
    assert [out.finish_reason for out in session.run()] == ["length", "length"]


@pytest.mark.parametrize("started", [False, True])
def test_every_end_is_told_once(started: bool) -> None:
    """A request that was aborted, or that asked for no token, ended without any news."""
    engine = Engine(TinyTarget(slots=2), "ngram")
    session = engine.session(
        [
            Request([1], SamplingParams(max_tokens=0), id="none"),
            Request([2], SamplingParams(max_tokens=1), id="one"),
            Request([3], SamplingParams(max_tokens=30), id="aborted"),
            Request([4], SamplingParams(max_tokens=3), id="waits"),
        ]
    )
    news = session.step() if started else []
    session.abort("aborted")
    while session.active:
        news += session.step()
    news += session.step()
    ends = {item.id: item.finish_reason for item in news if item.finish_reason}
    assert ends == {"none": "length", "one": "length", "aborted": "abort", "waits": "length"}
    assert sum(item.finish_reason is not None for item in news) == 4


def test_session_statistics_count_rounds_and_depths() -> None:
    want = plain([2], SamplingParams(max_tokens=13))
    session = Engine(TinyTarget(), Echo({(2,): want}), budget=4).session([Request([2], SamplingParams(max_tokens=13))])
    while session.active:
        session.step()
    report = session.stats.read()
    assert (report.rounds, report.emitted, report.tau) == (3, 12, 4.0)
    assert report.accepted_at == (1.0, 1.0, 1.0)
    assert session.stats.tau == 4.0


def test_slots_are_handed_out_lowest_first_and_freed_once() -> None:
    pool = SlotPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CapacityError, match="all 3 are held"):
        pool.take()
    pool.give_back(2)
    pool.give_back(0)
    assert (pool.free, pool.take()) == (2, 0)
    for slot in (2, 7):
        with pytest.raises(CapacityError, match=f"slot {slot} was given back; it is not held"):
            pool.give_back(slot)
