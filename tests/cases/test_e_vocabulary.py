"""Draft models whose vocabulary is longer, shorter or another one, and drafts outside any vocabulary."""

from __future__ import annotations

import pytest
from case_helpers import assert_same, plain, words
from specdec_drafters.draft_model import DraftModel, compare_vocabularies
from tokenizers import Tokenizer

from specdec import CompositionError, Engine, SamplingParams
from specdec.testing import ScriptedDrafter, TinyTarget

V = 64
PROMPTS = [[1, 5, 9, 2], [63, 62, 61], [2], [60, 8, 60, 8]]


def spelled(size: int) -> list[str]:
    return [f"w{i}" for i in range(size)]


class Model(TinyTarget):
    """A target with a tokenizer of its own, as loaded models have one."""

    def __init__(self, vocab_size: int, tokenizer: Tokenizer | None, **options: int) -> None:
        super().__init__(vocab_size, **options)
        self.tokenizer = tokenizer


class Outside(TinyTarget):
    """Fails where a token is submitted that the vocabulary does not have."""

    def _forward(self, slots, start, tokens, reach, depth):
        assert int(tokens.min()) >= 0
        assert int(tokens.max()) < self.spec.vocab_size
        return super()._forward(slots, start, tokens, reach, depth)


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [60, 64, 68])
def test_a_vocabulary_padded_or_shortened_at_its_end_drafts_what_is_shared(
    size: int, temperature: float, rule: str
) -> None:
    """Vocabularies padded to other sizes were refused, or crashed the target with ids that it does not have."""
    target, model = Outside(V), Outside(size, seed=1)
    target.tokenizer, model.tokenizer = words(spelled(V)), words(spelled(size))  # type: ignore[attr-defined]
    engine = Engine(target, DraftModel(model), rule, budget=5, check=True)
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=4)
    got = engine.generate(PROMPTS, params)
    assert all(0 <= token < V for out in got for token in out.tokens)
    assert sum(out.stats.drafted for out in got) > 0
    if rule == "match":
        assert_same(got, plain(Model(V, words(spelled(V))), PROMPTS, params))


def test_another_vocabulary_of_the_same_size_is_refused_with_the_first_id_that_differs() -> None:
    """A permuted vocabulary was accepted since its size was right; the drafts were garbage."""
    permuted = spelled(V)
    permuted[7], permuted[9] = permuted[9], permuted[7]
    target = Model(V, words(spelled(V)))
    with pytest.raises(CompositionError, match="token 7 is 'w9' there and 'w7' in the target"):
        Engine(target, DraftModel(Model(V, words(permuted))))


def test_vocabularies_that_do_not_tell_their_tokens_are_not_compared() -> None:
    compare_vocabularies({}, {"a": 0})
    compare_vocabularies({"a": 0}, {})
    compare_vocabularies({"a": 0, "b": 1}, {"a": 0, "c": 2})


@pytest.mark.parametrize(
    "script",
    [[[-1]], [[V]], [[V + 4, 3]], [[3, -1, 5]], [[-5, -1, -1]], [[3, 4, 1 << 40]]],
    ids=str,
)
def test_drafted_ids_outside_the_vocabulary_are_dropped(script: list[list[int]]) -> None:
    """Ids of the drafter alone, and the -1 of padding, were submitted to the target."""
    engine = Engine(Outside(V), ScriptedDrafter(script * 20), budget=5, check=True)
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=3)
    assert_same(engine.generate(PROMPTS, params), plain(TinyTarget(V), PROMPTS, params))


@pytest.mark.parametrize("token", [V, -1, True, 1.5, None, "a"])
def test_a_prompt_outside_the_vocabulary_is_refused_by_value(token: object) -> None:
    from specdec import OptionError

    engine = Engine(TinyTarget(V), "none")
    with pytest.raises(OptionError, match=f"the prompt holds {token!r}; token ids are whole numbers from 0 to 63"):
        engine.generate([[1, token]])  # type: ignore[list-item]
