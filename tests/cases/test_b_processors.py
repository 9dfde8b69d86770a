"""Penalties, biases, bans and a user's own processors act at every token as plain decoding has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from case_helpers import SHAPES, assert_same, both, counting, plain
from specdec_drafters.draft_model import DraftModel
from specdec_drafters.ngram import Ngram
from torch import Tensor

from specdec import Engine, OptionError, SamplingParams
from specdec.drafter import Drafter
from specdec.testing import Echo, RandomTree, ScriptedDrafter, TinyTarget, Wrong

PROMPTS = [[1, 5, 9, 2], [3, 3, 8], [2], [9, 8, 9, 8, 9, 8, 9]]
PENALTIES = [
    {"frequency_penalty": 1.5},
    {"frequency_penalty": -0.4},
    {"presence_penalty": 2.0},
    {"presence_penalty": -0.7},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.8},
    {"frequency_penalty": 0.6, "presence_penalty": 0.6, "repetition_penalty": 1.2},
]


def naive(prompt: Sequence[int], steps: int, change: Callable[[list[int], list[int], Tensor], Tensor]) -> list[int]:
    """Greedy decoding in five lines: the whole text is prefilled for every token."""
    target, new = TinyTarget(), list[int]()
    for _ in range(steps):
        text = torch.tensor([*prompt, *new])
        logits = target.open(torch.tensor([0]), [text]).logits[0, 0]
        new.append(int(change(list(prompt), new, logits.clone()).argmax()))
    return new


def penalise(options: dict[str, float]) -> Callable[[list[int], list[int], Tensor], Tensor]:
    """The three penalties, token by token in plain arithmetic."""

    def change(prompt: list[int], new: list[int], logits: Tensor) -> Tensor:
        for token in range(len(logits)):
            if token in prompt or token in new:
                factor = options.get("repetition_penalty", 1.0)
                logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
            logits[token] -= options.get("frequency_penalty", 0.0) * new.count(token)
            logits[token] -= options.get("presence_penalty", 0.0) * (token in new)
        return logits

    return change


def drafters() -> dict[str, Drafter]:
    return {
        "itself": DraftModel(TinyTarget()),
        "ngram": Ngram(min_match=1),
        "trees": RandomTree(narrow=6),
        "none": ScriptedDrafter([]),
    }


@cache
def penalised(options: tuple[tuple[str, float], ...]) -> list[list[int]]:
    return [naive(prompt, 12, penalise(dict(options))) for prompt in PROMPTS]


@pytest.mark.parametrize("name", drafters())
@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_penalties_are_those_of_a_naive_loop(name: str, options: dict[str, float]) -> None:
    """Penalties advanced once a round, so a run of L tokens had an L-th of the penalty."""
    engine = Engine(TinyTarget(), drafters()[name], budget=5, check=True)
    got = engine.generate(PROMPTS, max_tokens=12, **options)
    assert [out.tokens for out in got] == penalised(tuple(options.items()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.1])
def test_penalties_leave_accepted_runs_as_they_were(shape: str, temperature: float) -> None:
    for options in PENALTIES:
        params = SamplingParams(max_tokens=16, temperature=temperature, seed=3, **options)
        answers = {tuple(p): one.tokens for p, one in zip(PROMPTS, plain(TinyTarget(), PROMPTS, params), strict=True)}
        engine = Engine(TinyTarget(), SHAPES[shape](answers), budget=9)
        got = engine.generate(PROMPTS, params)
        assert [one.tokens for one in got] == list(answers.values())
        assert min(one.stats.tau for one in got) >= 3


def test_a_penalty_and_its_opposite_give_two_texts() -> None:
    """A penalty was ignored without a word: -2 and +2 gave one text."""
    texts = {
        value: Engine(TinyTarget(), "ngram", budget=5).generate([PROMPTS[0]], max_tokens=16, frequency_penalty=value)[0]
        for value in (-2.0, 2.0)
    }
    assert texts[-2.0].tokens != texts[2.0].tokens


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True])
def test_a_repetition_penalty_that_divides_by_nothing_is_refused(value: float) -> None:
    """A repetition penalty of 0 divided by zero."""
    with pytest.raises(OptionError, match="repetition_penalty"):
        SamplingParams(repetition_penalty=value)


class Recorder:
    """A processor with state: it bans what it allowed twice in its own life, and notes every call."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.given = torch.zeros(37)

    def __call__(self, tokens: Sequence[int], logits: Tensor) -> Tensor:
        self.calls.append(list(tokens))
        logits = logits - 3.0 * self.given
        self.given[int(logits.argmax())] += 1
        return logits


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["always accepted", "tree of it", "always refused", "itself", "ngram", "trees"])
def test_a_processor_with_state_is_called_as_in_plain_decoding(kind: str, temperature: float) -> None:
    """Refused drafts were recorded in a processor's state, accepted ones twice."""

    def run(drafter: Drafter | str, budget: int) -> tuple[list[list[int]], list[list[list[int]]]]:
        processors = [Recorder() for _ in PROMPTS]
        params = [
            SamplingParams(max_tokens=14, temperature=temperature, seed=5, logits_processors=[one])
            for one in processors
        ]
        got = Engine(TinyTarget(), drafter, budget=budget).generate(PROMPTS, params)
        return [out.tokens for out in got], [one.calls for one in processors]

    tokens, calls = run("none", 1)
    answers = {tuple(prompt): answer for prompt, answer in zip(PROMPTS, tokens, strict=True)}
    made = {
        "always accepted": Echo(answers),
        "tree of it": SHAPES["tree"](answers),
        "always refused": Wrong(answers),
        **drafters(),
    }
    got_tokens, got_calls = run(made[kind], 5)
    assert got_tokens == tokens
    assert got_calls == calls
    assert calls[0] == [[*PROMPTS[0], *tokens[0][:i]] for i in range(14)]


def test_a_processor_is_not_called_past_a_stop() -> None:
    processor = Recorder()
    drafter = Echo({(3,): list(range(4, 20))})
    params = SamplingParams(max_tokens=12, stop_token_ids=[6], logits_processors=[lambda t, x: processor(t, x[:20])])
    processor.given = torch.zeros(20)
    [out] = Engine(counting(), drafter, budget=8).generate([[3]], params)
    assert out.tokens == [4, 5, 6]
    assert processor.calls == [[3], [3, 4], [3, 4, 5]]


def test_processors_run_in_their_order_after_the_other_options() -> None:
    seen: list[float] = []

    def note(tokens: Sequence[int], logits: Tensor) -> Tensor:
        seen.append(float(logits[7]))
        return logits

    def double(tokens: Sequence[int], logits: Tensor) -> Tensor:
        return logits * 2

    Engine(counting(), "none").generate(
        [[6]], max_tokens=1, logit_bias={7: 1.0}, logits_processors=[note, double, note]
    )
    assert seen == [7.0, 14.0]


def test_a_processor_that_changes_the_logits_it_was_given_changes_no_other_row() -> None:
    def in_place(tokens: Sequence[int], logits: Tensor) -> Tensor:
        logits[:] = -logits
        return logits

    params = [SamplingParams(max_tokens=8, logits_processors=[in_place]), SamplingParams(max_tokens=8, logprobs=0)]
    got = Engine(TinyTarget(), Ngram(min_match=1), budget=4).generate(PROMPTS[:2], params)
    assert_same(got[1:], plain(TinyTarget(), PROMPTS[1:2], SamplingParams(max_tokens=8)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("words", [[[6]], [[4, 5, 6]], [[5, 6], [6, 8]], [[3, 4, 5, 6, 7]]], ids=str)
def test_bad_words_are_never_completed(shape: str, words: list[list[int]]) -> None:
    """A banned sequence was let through when its last tokens were drafted."""
    params = SamplingParams(max_tokens=12, bad_words=words)
    got, want = both(counting, [[3], [1, 3], [4, 5]], params, shape)
    assert_same(got, want)
    for prompt, out in zip([[3], [1, 3], [4, 5]], got, strict=True):
        text = [*prompt, *out.tokens]
        ends = range(len(prompt) + 1, len(text) + 1)
        assert not any(text[end - len(word) : end] == word for word in words for end in ends)


@pytest.mark.parametrize("shape", SHAPES)
def test_logit_bias_acts_on_every_node(shape: str) -> None:
    params = SamplingParams(max_tokens=12, logit_bias={6: -50.0, 0: 5.5})
    got, want = both(counting, [[3], [1, 2]], params, shape)
    assert_same(got, want)
    assert 6 not in got[0].tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_bias": {20: 1.0}}, "logit_bias names token 20; the vocabulary has 20"),
        ({"stop_token_ids": [99]}, "stop_token_ids names token 99"),
        ({"bad_words": [[1, 20]]}, "bad_words holds"),
        ({"bad_words": ["ab"]}, "bad_words holds the text 'ab'; this engine has no tokenizer"),
        ({"stop": "ab"}, "this engine has no tokenizer"),
        ({"regex": "a+"}, "regex was asked; this engine has no tokenizer"),
        ({"logits_processors": [lambda tokens, logits: logits[:3]]}, "logits processor .* returned"),
        ({"logits_processors": [lambda tokens, logits: None]}, "logits processor .* returned NoneType"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_name(options: dict[str, object], message: str) -> None:
    """Options without effect were dropped silently."""
    engine = Engine(counting(), "ngram")
    with pytest.raises((OptionError, RuntimeError), match=message):
        engine.generate([[3]], max_tokens=4, **options)
    assert engine.free_slots == 8
