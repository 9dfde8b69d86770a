"""What is emitted: ends inside accepted runs, limits, and drafts that are never taken on trust."""

from __future__ import annotations

import pytest
import torch
from case_helpers import SHAPES, TreeEcho, assert_same, both, counting, knowing, plain, reciting, words
from specdec_drafters.ngram import Ngram

from specdec import Engine, SamplingParams
from specdec.testing import Echo, ScriptedDrafter, TableTarget, TinyTarget

RAGGED = [[3], [1, 2, 3], [5, 4], [9, 9, 9, 9]]
LETTERS = [*"abcdefghijklmnopqrst"]


@pytest.mark.parametrize("drafter", [Ngram(min_match=1), ScriptedDrafter([[1]])], ids=["ngram", "scripted"])
def test_a_draft_of_one_token_is_checked(drafter: object) -> None:
    """The first draft token was committed unverified: after [1, 1, 1] a look-up proposed 1, the target said 2."""

    def logits(tokens: list[int]) -> torch.Tensor:
        return torch.eye(4)[2 if len(tokens) >= 4 else 1]

    engine = Engine(TableTarget(logits, vocab_size=4), drafter, budget=2)  # type: ignore[arg-type]
    assert engine.generate([[1, 1, 1]], max_tokens=2)[0].tokens == [1, 2]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prompts", [RAGGED[:1], RAGGED], ids=["alone", "ragged"])
@pytest.mark.parametrize("eos", range(4, 14))
def test_an_accepted_eos_ends_the_output_wherever_it_stands_in_a_block(
    shape: str, prompts: list[list[int]], eos: int
) -> None:
    """An EOS that was accepted in the middle of a block was run past."""
    got, want = both(lambda: counting(eos_id=eos), prompts, SamplingParams(max_tokens=17), shape)
    assert_same(got, want)
    assert got[0].tokens == list(range(4, eos + 1))
    assert got[0].finish_reason == "stop"


def test_a_stream_ends_at_an_accepted_eos() -> None:
    """The streamer went on to show tokens past an EOS inside a block."""
    engine = Engine(counting(eos_id=7), Echo({(3,): list(range(4, 20))}), budget=9)
    chunks = list(engine.stream([3], max_tokens=12))
    assert [token for chunk in chunks for token in chunk.tokens] == [4, 5, 6, 7]
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("max_tokens", "tokens", "reason"),
    [(2, [4, 5], "length"), (3, [4, 5, 6], "stop"), (4, [4, 5, 6], "stop"), (5, [4, 5, 6], "stop")],
)
def test_eos_and_the_limit_in_one_accepted_run(shape: str, max_tokens: int, tokens: list[int], reason: str) -> None:
    """A run that held EOS and crossed max_tokens leaked what followed EOS, and said "length"."""
    answer = {(3,): [4, 5, 6, 7, 8, 9, 10, 11]}
    engine = Engine(counting(eos_id=6), SHAPES[shape](answer), budget=9)
    [out] = engine.generate([[3]], max_tokens=max_tokens)
    assert (out.tokens, out.finish_reason) == (tokens, reason)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9, 17])
@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [
        ("b", "a", 2),
        ("ab", "", 2),
        ("cd", "ab", 4),
        ("hij", "abcdefg", 10),
        (["lm", "fg"], "abcde", 7),
        (["defgh", "efg"], "abcd", 7),
        (["zz", "no such text"], "abcdefghijklmnop", 16),
    ],
)
def test_a_stop_string_ends_the_text_wherever_it_stands(
    shape: str, budget: int, stop: str | list[str], text: str, count: int
) -> None:
    """A stop string early in a long accepted run, or across two rounds, was missed.

    `tokens` ends with the token that completed the string; the text leaves the string out.
    """
    answer = list(range(20))
    drafter = SHAPES[shape]({(19,): answer})
    engine = Engine(counting(), drafter, tokenizer=words(LETTERS), budget=budget)
    [out] = engine.generate([[19]], max_tokens=16, stop=stop)
    assert (out.text, out.tokens) == (text, answer[:count])
    assert out.finish_reason == ("length" if count == 16 else "stop")


@pytest.mark.parametrize(
    ("stop", "text", "count"), [("ab", "x", 2), ("bya", "xa", 3), ("y", "xab", 2), ("aab", "xaby", 5)]
)
def test_a_stop_string_may_begin_and_end_inside_tokens(stop: str, text: str, count: int) -> None:
    """A stop string that does not fall on token borders was missed."""
    spelled = ["#", "xa", "by", "a", "aa", "b"]
    answer = [1, 2, 3, 3, 5, 4, 5]
    engine = Engine(reciting([0], answer, 6), Echo({(0,): answer}), tokenizer=words(spelled), budget=8)
    [out] = engine.generate([[0]], max_tokens=7, stop=stop)
    assert (out.text, out.tokens) == (text, answer[:count])


@pytest.mark.parametrize("budget", [1, 2, 5, 17])
@pytest.mark.parametrize("stop", ["cd", "jk", ["hijk", "ij"], "pq", ["b", "bcdefgz", "efghijklmnop"]])
def test_a_stream_shows_what_the_completion_holds_and_no_part_of_a_stop(budget: int, stop: str | list[str]) -> None:
    """The beginning of a stop string was streamed before it could be recognised."""
    engine = Engine(counting(), Echo({(19,): list(range(20))}), tokenizer=words(LETTERS), budget=budget)
    [whole] = engine.generate([[19]], max_tokens=16, stop=stop)
    chunks = list(engine.stream([19], max_tokens=16, stop=stop))
    shown = ""
    for chunk in chunks:
        shown += chunk.text
        assert whole.text.startswith(shown)
    assert shown == whole.text
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.text == whole.text


def test_a_stop_string_cuts_ids_and_logprobs_with_the_text() -> None:
    """The text was cut at a stop string; ids and log-probabilities kept the rest of the run."""
    target = reciting([0], [1] * 8, 3)
    engine = Engine(target, Echo({(0,): [1] * 8}), tokenizer=words(["#", " ha", "."]), budget=8)
    [out] = engine.generate([[0]], max_tokens=8, stop=" ha ha ha", logprobs=1)
    assert (out.text, out.tokens) == ("", [1, 1, 1])
    assert out.logprobs is not None
    assert len(out.logprobs) == 3


def test_stops_hold_in_a_batch_of_rows_with_and_without_drafts() -> None:
    """Stop words were looked for at a wrong offset when a batch mixed rows with and without drafts."""
    prompts = [[3], [6], [2], [10]]
    drafter = Echo({(3,): list(range(4, 20)), (2,): [3, 4]})
    params = SamplingParams(max_tokens=12, stop=["ij", "pq"])
    engine = Engine(counting(), drafter, tokenizer=words(LETTERS), budget=6)
    assert_same(engine.generate(prompts, params), plain(counting(), prompts, params, tokenizer=words(LETTERS)))


@pytest.mark.parametrize("length", range(1, 17))
def test_max_tokens_is_never_passed_nor_missed(length: int) -> None:
    """A look-up of three tokens with a limit of two gave three; a limit of four gave one."""

    def make() -> TinyTarget:
        return TinyTarget(slots=41)

    prompt = [9, 8, 9, 8, 9]
    [free] = plain(make(), [prompt], SamplingParams(max_tokens=60))
    engine = Engine(make(), Echo({tuple(prompt): free.tokens}, rate=0.9), budget=length + 1)
    params = [SamplingParams(max_tokens=n) for n in range(41)]
    for n, out in enumerate(engine.generate([prompt] * 41, params)):
        assert (out.tokens, out.finish_reason) == (free.tokens[:n], "length")
        assert out.stats.emitted == max(0, n - 1)
        assert out.stats.accepted <= out.stats.drafted


def test_a_model_without_eos_decodes_to_the_limit() -> None:
    """Prompt look-up failed with a TypeError where no EOS was defined."""
    engine = Engine(counting(), Ngram(), budget=4)
    [out] = engine.generate([[5, 6, 7, 8, 9, 10, 11, 7, 8]], max_tokens=8)
    assert (out.tokens, out.finish_reason) == ([9, 10, 11, 12, 13, 14, 15, 16], "length")


EVER_EOS = torch.tensor([1.0, 0.5, 0.0, 9.0]).expand(4, 4)


@pytest.mark.parametrize("script", [[[3, 3, 3, 3]] * 6, [[0, 0, 0, 0]] * 6, [[0, 0, 3, 0]] * 6, [[0], [], [0, 0]] * 3])
def test_min_tokens_masks_eos_exactly_so_long(script: list[list[int]]) -> None:
    """EOS was masked on one row too many, or not at all, when drafts were verified."""
    engine = Engine(TableTarget(EVER_EOS, eos_id=3), ScriptedDrafter(script), budget=5)
    [out] = engine.generate([[1]], max_tokens=12, min_tokens=5)
    assert out.tokens == [0, 0, 0, 0, 0, 3]
    assert out.finish_reason == "stop"


@pytest.mark.parametrize("min_tokens", range(9))
def test_min_tokens_holds_in_trees(min_tokens: int) -> None:
    engine = Engine(TableTarget(EVER_EOS, eos_id=3), TreeEcho({(1,): [0] * min_tokens + [3] * 9}), budget=9)
    [out] = engine.generate([[1]], max_tokens=12, min_tokens=min_tokens)
    assert out.tokens == [0] * min_tokens + [3]


@pytest.mark.parametrize("budget", [1, 4, 17])
def test_a_stop_string_that_ended_before_min_tokens_is_not_found_later(budget: int) -> None:
    """A string completed too early ended the text one token after min_tokens, when another stop was longer."""
    engine = Engine(counting(), Echo({(19,): list(range(20))}), tokenizer=words(LETTERS), budget=budget)
    [out] = engine.generate([[19]], max_tokens=10, min_tokens=3, stop=["ab", "a stop of many letters"])
    assert (out.text, out.finish_reason) == ("abcdefghij", "length")
    [out] = engine.generate([[19]], max_tokens=10, min_tokens=3, stop=["ab", "bcd", "a stop of many letters"])
    assert (out.text, out.finish_reason) == ("a", "stop")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", range(1, 26))
def test_a_user_s_stop_criterion_holds_to_the_token(shape: str, n: int) -> None:
    """A criterion that fired inside a block overshot by up to six tokens."""
    calls: list[list[int]] = []

    def long_enough(tokens: list[int]) -> bool:
        calls.append(list(tokens))
        return len(tokens) >= 1 + n

    drafter = SHAPES[shape]({(19,): list(range(20)) * 2})
    [out] = Engine(counting(), drafter, budget=8).generate([[19]], max_tokens=30, stop_criteria=[long_enough])
    answer = [i % 20 for i in range(30)]
    assert (out.tokens, out.finish_reason) == (answer[:n], "stop")
    assert calls == [[19, *answer[:i]] for i in range(1, n + 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("token", range(5, 12))
def test_a_stop_token_ends_the_output_and_is_held(shape: str, token: int) -> None:
    got, want = both(counting, RAGGED, SamplingParams(max_tokens=14, stop_token_ids=[token]), shape)
    assert_same(got, want)
    assert got[0].tokens[-1] == token


@pytest.mark.parametrize("shape", SHAPES)
def test_ignore_eos_runs_on_and_keeps_stop_tokens(shape: str) -> None:
    params = SamplingParams(max_tokens=14, ignore_eos=True, stop_token_ids=[9])
    got, want = both(lambda: counting(eos_id=6), [[3]], params, shape)
    assert_same(got, want)
    assert got[0].tokens == [4, 5, 6, 7, 8, 9]


def test_special_tokens_stay_out_of_the_text_and_in_the_tokens() -> None:
    tokenizer = words(LETTERS, special=["g"])
    drafter = knowing(lambda: counting(eos_id=6), [[3]], SamplingParams(max_tokens=9), "chain")
    [out] = Engine(counting(eos_id=6), drafter, tokenizer=tokenizer).generate([[3]], max_tokens=9)
    assert (out.text, out.tokens) == ("ef", [4, 5, 6])


def test_a_request_that_ends_with_its_first_token_takes_part_in_no_round() -> None:
    engine = Engine(counting(eos_id=4), Echo({(3,): [4, 5, 6]}), budget=4)
    [out] = engine.generate([[3]], max_tokens=9)
    assert (out.tokens, out.finish_reason, out.stats.rounds) == ([4], "stop", 0)
    [chunk] = list(engine.stream([3], max_tokens=9))
    assert (chunk.tokens, chunk.finish_reason) == ([4], "stop")


def test_no_token_at_all_may_be_asked_for() -> None:
    engine = Engine(counting(), "none", tokenizer=words(LETTERS))
    [out] = engine.generate([[3]], max_tokens=0)
    assert (out.tokens, out.text, out.finish_reason) == ([], "", "length")
    [chunk] = list(engine.stream([3], max_tokens=0))
    assert (chunk.tokens, chunk.finish_reason) == ([], "length")
    assert engine.free_slots == engine.target.spec.slots
