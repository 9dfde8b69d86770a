"""Every sampling option refuses what it cannot mean, with its name and the value in the message."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from specdec import OptionError, SamplingParams

INF, NAN = math.inf, math.nan
BAD: dict[str, list[Any]] = {
    "max_tokens": [-1, 1.5, "8", None, True],
    "min_tokens": [-1, 2.0, None],
    "temperature": [-0.1, NAN, INF, "hot", None, True],
    "top_k": [-2, 1.5, "3", None, True],
    "top_p": [0.0, -0.5, 1.01, NAN, "x", None],
    "min_p": [-0.01, 1.01, NAN, None],
    "seed": [1.5, "7", 1 << 63, -(1 << 63) - 1, True],
    "stop": ["", ["a", ""], [b"a"], [5], None, 5],
    "stop_token_ids": [5, "5", [-1], [1.0], [True], None],
    "ignore_eos": ["no", 1, None],
    "repetition_penalty": [0.0, -1.0, NAN, INF, None],
    "presence_penalty": [NAN, INF, -INF, "x"],
    "frequency_penalty": [NAN, INF, -INF, None],
    "logit_bias": [{-1: 0.0}, {"5": 0.0}, {5: NAN}, {5: INF}, {5: "x"}, {5: True}, [5], None],
    "bad_words": ["word", [""], [[]], [5], [[-1]], [["a"]], None],
    "n": [0, -1, 1.0, True],
    "logprobs": [-1, 1.5, True],
    "regex": [5, b"a", ["a"]],
    "json_schema": [5, ["a"], True],
    "logits_processors": [5, [5], None, len],
    "stop_criteria": [5, [None], None, len],
}
CASES = [(name, value) for name, values in BAD.items() for value in values]
GOOD: dict[str, list[Any]] = {
    "max_tokens": [0, 1],
    "temperature": [0, 0.0, 1e-6, 2.5],
    "top_k": [-1, 0, 1],
    "top_p": [1, 1e-9],
    "min_p": [0, 1],
    "seed": [None, 0, -1, (1 << 63) - 1, -(1 << 63)],
    "stop": ["a", ["a", "b"], ()],
    "stop_token_ids": [[0, 5], ()],
    "repetition_penalty": [0.5, 2],
    "presence_penalty": [-2, 2.0],
    "logit_bias": [{5: -INF}, {0: 3}],
    "bad_words": [["a", [1, 2]], ()],
    "logprobs": [None, 0, 5],
    "regex": [None, "a+"],
    "json_schema": [None, "{}", {}],
    "stop_criteria": [[len]],
}


def _leaf(value: Any) -> Any:
    """Descend to the entry at fault: the last of a list, the key of a mapping unless it is a token id."""
    if isinstance(value, dict) and value:
        [(key, entry)] = value.items()
        return entry if isinstance(key, int) and key >= 0 else key
    return _leaf(value[-1]) if isinstance(value, list) and value else value


def test_every_option_has_a_bad_value_here() -> None:
    assert set(BAD) == {f.name for f in fields(SamplingParams)}


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{name}-{value!r}" for name, value in CASES])
def test_a_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{name}-{value!r}" for name, value in CASES])
def test_the_refusal_of_a_bad_value_shows_it(name: str, value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert repr(value) in message or repr(_leaf(value)) in message


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in GOOD.items() for value in values],
    ids=lambda value: str(value),
)
def test_a_value_at_the_border_is_taken(name: str, value: Any) -> None:
    SamplingParams(**{name: value})


def test_min_tokens_above_max_tokens_are_refused() -> None:
    with pytest.raises(OptionError, match="min_tokens 5 is above max_tokens 4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_two_grammars_are_refused() -> None:
    with pytest.raises(OptionError, match="regex and json_schema"):
        SamplingParams(regex="a", json_schema={})


def test_an_unknown_override_proposes_the_nearest_name() -> None:
    with pytest.raises(OptionError, match=r"'temprature' is not known .* Did you mean 'temperature'\?"):
        SamplingParams().override(temprature=1.0)


def test_an_override_is_checked_and_leaves_the_original_alone() -> None:
    params = SamplingParams(temperature=0.5)
    assert params.override(top_k=3) == SamplingParams(temperature=0.5, top_k=3)
    assert params.top_k == 0
    with pytest.raises(OptionError, match="top_k"):
        params.override(top_k=-5)


def test_minus_one_switches_top_k_off() -> None:
    assert SamplingParams(top_k=-1).top_k == 0


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)


@pytest.mark.parametrize(
    ("change", "penalised"),
    [({}, False), ({"repetition_penalty": 1.1}, True), ({"presence_penalty": 0.1}, True), ({"top_k": 3}, False)],
)
def test_penalised_says_whether_logits_depend_on_the_output(change: dict[str, Any], penalised: bool) -> None:
    assert SamplingParams(**change).penalised is penalised
