"""Loops, medians, divergences, and when a speed-up is withheld."""

import random

import pytest

from specdec.bench.compare import Divergence, first_difference
from specdec.bench.loops import loops
from specdec.bench.measure import Plan
from specdec.bench.report import row, rows
from specdec.bench.results import Results
from specdec.bench.store import Sample


class Named:
    """A runner that is only asked for its name."""

    def __init__(self, name, lossless=True):
        self.name, self.lossless, self.repeatable = name, lossless, True


def words(count, seed=0):
    return random.Random(seed).choices(range(1000), k=count)


def sample(drafter, tokens, seconds, *, prompt="p", repeat=0, **counts):
    return Sample(prompt, drafter, 0.0, repeat, seconds, tokens, counts)


def results(samples, parted=None):
    return Results(samples, 0.0, lambda *args: parted if args[1] != args[2] else None)


@pytest.mark.parametrize(
    "tokens",
    [[5] * 30, words(40) + [1, 2, 3] * 10, words(20) * 4, words(30) + words(30, 1) * 3 + words(5, 2)],
)
def test_outputs_that_repeat_themselves_are_loops(tokens):
    assert loops(tokens)


@pytest.mark.parametrize("tokens", [[], [1], words(200), words(30) * 2, words(60) + [7] * 10, list(range(90))])
def test_other_outputs_are_no_loops(tokens):
    assert not loops(tokens)


def test_a_prompt_counts_with_the_median_of_its_repeats():
    repeats = [sample("none", words(10), seconds, repeat=i) for i, seconds in enumerate((1.0, 2.0, 50.0))]
    assert results(repeats).rate("none", ["p"]) == pytest.approx(5.0)


def test_a_category_has_all_tokens_over_all_seconds():
    found = results([sample("none", words(10), 1.0, prompt="a"), sample("none", words(30), 1.0, prompt="b")])
    assert found.rate("none", ["a", "b"]) == pytest.approx(20.0)


def test_looping_prompts_are_counted_and_left_out():
    loop = [1, 2] * 30
    samples = [sample(d, words(10), 1.0, prompt="a") for d in ("none", "ngram")]
    samples += [sample("none", loop, 6.0, prompt="b"), sample("ngram", loop, 1.0, prompt="b")]
    found = row(results(samples), [Named("none"), Named("ngram")], Named("ngram"), "c", ["a", "b"])
    assert found["looping_share"] == 0.5
    assert found["speedup_vs_none"] == 1.0
    assert found["tokens_per_s"] == 10.0
    assert found["tokens_per_s_all"] == 35.0


def test_equal_tokens_earn_a_speed_up():
    samples = [sample("none", words(10), 1.0), sample("ngram", words(10), 0.5, rounds=4, emitted=9)]
    found = row(results(samples), [Named("none"), Named("ngram")], Named("ngram"), "c", ["p"])
    assert (found["tokens_equal"], found["speedup_vs_none"], found["tau"]) == (True, 2.0, 2.25)
    assert found["withheld"] is None


def test_a_tie_is_reported_beside_the_speed_up():
    samples = [sample("none", words(10), 1.0), sample("ngram", words(10, 1), 0.5)]
    tie = Divergence(3, 0.1, tie=True)
    found = row(results(samples, tie), [Named("none"), Named("ngram")], Named("ngram"), "c", ["p"])
    assert found["tokens_equal"] is False
    assert found["speedup_vs_none"] == 2.0
    assert found["first_divergence"] == {"prompt": "p", "position": 3, "gap": 0.1, "tie": True}


@pytest.mark.parametrize("parted", [Divergence(3, 9.0, tie=False), Divergence(3, None, tie=False)])
def test_other_tokens_earn_none(parted):
    samples = [sample("none", words(10), 1.0), sample("ngram", words(10, 1), 0.5)]
    found = row(results(samples, parted), [Named("none"), Named("ngram")], Named("ngram"), "c", ["p"])
    assert found["speedup_vs_none"] is None
    assert "token 3" in found["withheld"]


def test_a_lossy_rule_says_so():
    samples = [sample("none", words(10), 1.0), sample("ngram", words(10, 1), 0.5)]
    lossy = Named("ngram", lossless=False)
    found = row(results(samples, Divergence(3, 9.0, tie=False)), [Named("none"), lossy], lossy, "c", ["p"])
    assert found["speedup_vs_none"] == 2.0
    assert "lossy" in found["note"]


def test_a_row_over_all_prompts_follows_the_categories():
    samples = [sample("none", words(10), 1.0, prompt=p) for p in "ab"]
    found = rows(results(samples), [Named("none")], {"x": ["a"], "y": ["b"]})
    assert [(item["category"], item["prompts"]) for item in found] == [("x", 1), ("y", 1), ("all", 2)]


def test_first_difference_sees_tokens_and_lengths():
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_runners_take_turns_in_going_first():
    plan = Plan(prompts={"p": [1], "q": [1]}, max_tokens=1, repeats=2)
    order = [(repeat, prompt, runner.name) for _, repeat, prompt, runner in plan.schedule([Named("a"), Named("b")])]
    assert order == [
        (0, "p", "a"), (0, "p", "b"), (0, "q", "b"), (0, "q", "a"),
        (1, "p", "b"), (1, "p", "a"), (1, "q", "a"), (1, "q", "b"),
    ]  # fmt: skip
