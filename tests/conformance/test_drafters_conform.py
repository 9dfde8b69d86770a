"""Every registered drafter, and the fakes of the test kit, leave every token as plain decoding gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from specdec_drafters.draft_model import DraftModel

from specdec import Engine, SamplingParams, registry
from specdec.drafter import Drafter
from specdec.target import Target
from specdec.testing import Echo, RandomTree, ScriptedDrafter, TinyTarget, Wrong, assert_conforms
from specdec.testing.conformance import PROMPTS

#: How to build each registered drafter; a name that is not listed here fails the test below.
BUILD: dict[str, Callable[[Target], Drafter]] = {
    "none": lambda target: registry.build(registry.DRAFTERS, "none"),
    "ngram": lambda target: registry.build(registry.DRAFTERS, "ngram", {"ngram": {"min_match": 1}}),
    "draft_model": lambda target: registry.build(
        registry.DRAFTERS, "draft_model", {"draft_model": {"model": TinyTarget(seed=1)}}
    ),
}
SCRIPT = [[5], [], [1, 2, 3], [9, 8, 9, 8], [36, 0], [], [7]] * 3


def answers_of(temperature: float, max_tokens: int) -> Mapping[tuple[int, ...], list[int]]:
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=11, ignore_eos=True)
    plain = Engine(TinyTarget(), "none").generate(PROMPTS, params)
    return {tuple(prompt): one.tokens for prompt, one in zip(PROMPTS, plain, strict=True)}


@pytest.mark.parametrize("name", registry.names(registry.DRAFTERS))
def test_every_registered_drafter_changes_no_token(name: str) -> None:
    assert name in BUILD, f"drafter {name!r} is registered; say in BUILD how to construct it"
    assert_conforms(BUILD[name], max_tokens=8)


def test_random_trees_change_no_token() -> None:
    assert_conforms(lambda target: RandomTree(narrow=5), budgets=(9,), max_tokens=10)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("kind", ["right", "often right", "never right"])
def test_drafts_of_any_quality_change_no_token(kind: str, temperature: float) -> None:
    answers = answers_of(temperature, 12)
    make = {
        "right": lambda target: Echo(answers),
        "often right": lambda target: Echo(answers, rate=0.6),
        "never right": lambda target: Wrong(answers),
    }[kind]
    assert_conforms(make, temperatures=(temperature,), budgets=(5,), max_tokens=8)


def test_scripted_drafts_of_changing_length_change_no_token() -> None:
    assert_conforms(lambda target: ScriptedDrafter(SCRIPT), budgets=(5,), max_tokens=8)


@pytest.mark.parametrize("name", ["none", "ngram", "self", "other model", "random trees", "answers"])
def test_500_greedy_tokens_are_those_of_plain_decoding(name: str) -> None:
    """Greedy output with a drafter parted from plain decoding after some hundred tokens."""

    def target() -> TinyTarget:
        return TinyTarget(max_len=520, slots=1)

    params = SamplingParams(max_tokens=500)
    [plain] = Engine(target(), "none").generate([[1, 5, 9]], params)
    drafter: Drafter = {
        "none": lambda: BUILD["none"](target()),
        "ngram": lambda: BUILD["ngram"](target()),
        "self": lambda: DraftModel(target()),
        "other model": lambda: DraftModel(TinyTarget(seed=1, max_len=520, slots=1)),
        "random trees": lambda: RandomTree(narrow=5),
        "answers": lambda: Echo({(1, 5, 9): plain.tokens}, rate=0.8),
    }[name]()
    [drafted] = Engine(target(), drafter, budget=3).generate([[1, 5, 9]], params)
    assert len(plain.tokens) == 500
    assert drafted.tokens == plain.tokens
