"""The end of the context, the shortest prompts, and drafters that have nothing to say."""

from __future__ import annotations

import pytest
import torch
from case_helpers import SHAPES, assert_same, plain
from specdec_drafters.draft_model import DraftModel
from specdec_drafters.ngram import Ngram

from specdec import CapacityError, Engine, OptionError, SamplingParams
from specdec.drafter import Drafter
from specdec.testing import RandomTree, ScriptedDrafter, TinyTarget

MAX = 100


def target() -> TinyTarget:
    return TinyTarget(max_len=MAX, max_budget=9, slots=4)


def text(length: int) -> list[int]:
    return [(7 * i + i * i) % 11 for i in range(length)]


def drafter(name: str, prompts: list[list[int]]) -> Drafter:
    if name in SHAPES:
        longer = TinyTarget(max_len=MAX, max_budget=9, slots=4)
        answers = plain(longer, prompts, SamplingParams(max_tokens=200))
        return SHAPES[name]({tuple(p): [*one.tokens, *text(30)] for p, one in zip(prompts, answers, strict=True)})
    return {
        "ngram": lambda: Ngram(min_match=1),
        "trees": lambda: RandomTree(narrow=5),
        "itself": lambda: DraftModel(target()),
        "short context": lambda: DraftModel(TinyTarget(max_len=50, max_budget=9, slots=4)),
        "shorter than all": lambda: DraftModel(TinyTarget(max_len=3, max_budget=2, slots=4)),
        "long context": lambda: DraftModel(TinyTarget(max_len=300, slots=8)),
    }[name]()


NAMES = [*SHAPES, "ngram", "trees", "itself", "short context", "shorter than all", "long context"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [88, 95, 99, 100])
def test_decoding_ends_at_the_end_of_the_context(name: str, length: int) -> None:
    """Drafts reached past the last position, and crashed or corrupted the end of a long text."""
    prompts = [text(length), text(3)]
    params = [SamplingParams(max_tokens=200), SamplingParams(max_tokens=9)]
    engine = Engine(target(), drafter(name, prompts), budget=9, check=True)
    got = engine.generate(prompts, params)
    want = [plain(target(), [p], s)[0] for p, s in zip(prompts, params, strict=True)]
    assert_same(got, want)
    assert len(got[0].tokens) == MAX - length
    assert got[0].finish_reason == "length"


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers() -> None:
    engine = Engine(target(), "ngram")
    with pytest.raises(CapacityError, match=r"the prompt has 101 tokens; the target holds 100 positions"):
        engine.generate([text(101)])
    assert engine.free_slots == 4


@pytest.mark.parametrize("empty", [[[]], "", [""], [torch.tensor([], dtype=torch.int64)]], ids=str)
def test_an_empty_prompt_is_refused_in_words(empty: object) -> None:
    """An empty prompt ended in an error about shapes."""
    from case_helpers import words

    engine = Engine(target(), "ngram", tokenizer=words([*"abcdefghij"]))
    with pytest.raises(OptionError, match="the prompt is empty"):
        engine.generate(empty)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_prompts_shorter_than_what_a_drafter_looks_at(name: str, length: int) -> None:
    """A prompt shorter than the n-gram was looked up out of bounds."""
    prompts = [[5] * length]
    got = Engine(target(), drafter(name, prompts), budget=5, check=True).generate(prompts, max_tokens=12)
    assert_same(got, plain(target(), prompts, SamplingParams(max_tokens=12)))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_drafter_that_never_drafts_is_plain_decoding(temperature: float) -> None:
    """An empty draft passed a check for "enough drafts" and left indices without tokens behind."""
    params = SamplingParams(max_tokens=90, temperature=temperature, seed=1)
    engine = Engine(target(), ScriptedDrafter([[]] * 100 + [[1]]), budget=4, check=True)
    [got] = engine.generate([[1, 2, 3]], params)
    assert_same([got], plain(target(), [[1, 2, 3]], params))
    assert (got.stats.drafted, got.stats.rounds, got.stats.tau) == (0, 89, 1.0)


def test_a_model_of_shorter_context_drafts_until_its_end() -> None:
    engine = Engine(target(), DraftModel(TinyTarget(max_len=50, max_budget=9, slots=4)), budget=5)
    [within] = engine.generate([text(20)], max_tokens=20)
    [beyond] = engine.generate([text(60)], max_tokens=20)
    assert within.stats.drafted > 10
    assert beyond.stats.drafted == 0


def test_a_model_with_too_few_slots_is_refused_with_the_numbers() -> None:
    from specdec import CompositionError

    with pytest.raises(CompositionError, match="draft_model holds 2 slots; the target has 4"):
        Engine(target(), DraftModel(TinyTarget(slots=2)))


@pytest.mark.parametrize("budget", [1, 2, 9, 64])
def test_a_budget_never_passes_what_the_target_takes(budget: int) -> None:
    widths: list[int] = []

    class Notes(TinyTarget):
        def score(self, slots, lengths, draft):
            widths.append(draft.nodes)
            return super().score(slots, lengths, draft)

    engine = Engine(Notes(max_budget=6), RandomTree(), budget=budget)
    engine.generate([[1, 2]], max_tokens=30)
    assert max(widths) == min(budget, 6)
