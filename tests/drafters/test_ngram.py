"""The look-up drafter against a naive look-up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specdec_drafters.ngram import Ngram

from specdec import Engine, OptionError, Request
from specdec.sampling import Sampling
from specdec.testing import TinyTarget
from specdec.types import Context, Scores, Verdict

SMALL = settings(derandomize=True, deadline=None, database=None, max_examples=120)


def opened(drafter: Ngram, texts: list[list[int]], prompts: list[int]) -> Context:
    """Contexts over texts whose first `prompts[i]` tokens were the prompt, the rest committed one by one."""
    drafter.attach(TinyTarget(slots=8), None)
    window = drafter.spec.window
    slots = torch.arange(len(texts)) + 2
    for slot, text, n in zip(slots, texts, prompts, strict=True):
        request = Request(torch.tensor(text[:n]))
        drafter.open(slot[None], [request], Scores(torch.zeros(1, 1, 37)))
        for at in range(n, len(text)):
            ctx = context([text[: at + 1]], slot[None], window, 5)
            draft = drafter.propose(ctx)
            following = torch.tensor(text[at + 1 : at + 2] or [0])
            path = torch.full_like(draft.tokens, -1)
            path[:, 0] = 0
            if at + 1 < len(text):
                drafter.commit(ctx, draft, Verdict(path, torch.tensor([0]), following), Scores(torch.empty(0)))
    return context(texts, slots, window, 9)


def context(texts: list[list[int]], slots: torch.Tensor, window: int, budget: int) -> Context:
    tails = [[-1] * (window - len(t)) + t[-window:] for t in texts]
    return Context(
        slots, torch.tensor([len(t) for t in texts]), torch.tensor(tails), budget, Sampling.uniform(len(texts))
    )


def naive(text: list[int], max_match: int, min_match: int, stretch: int, most: int) -> list[int]:
    """What followed the longest, then latest, earlier place where the end of the text stands; over and over."""
    best, start = 0, 0
    for end in range(1, len(text)):
        length = 0
        while length < min(max_match, end) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length and length >= best:
            best, start = length, end
    if best < min_match:
        return []
    period = text[start:]
    return [period[i % len(period)] for i in range(min(most, stretch * best))]


def drafted(drafter: Ngram, ctx: Context) -> list[list[int]]:
    draft = drafter.propose(ctx)
    counts = draft.used.sum(1).tolist()
    return [row[1:n] for row, n in zip(draft.tokens.tolist(), counts, strict=True)]


texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@SMALL
@given(st.lists(texts, min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.data())
def test_it_continues_the_longest_then_latest_match(
    rows: list[list[int]], one: int, other: int, stretch: int, data: st.DataObject
) -> None:
    low, high = sorted((one, other))
    drafter = Ngram(max_match=high, min_match=low, stretch=stretch)
    prompts = [data.draw(st.integers(1, len(row))) for row in rows]
    ctx = opened(drafter, rows, prompts)
    assert drafted(drafter, ctx) == [naive(row, high, low, stretch, 8) for row in rows]


def test_a_continuation_that_reaches_the_end_goes_round() -> None:
    drafter = Ngram()
    assert drafted(drafter, opened(drafter, [[7, 1, 2, 3, 1, 2, 3]], [7])) == [[1, 2, 3, 1, 2, 3, 1, 2]]


def test_a_longer_match_beats_a_later_one() -> None:
    drafter = Ngram(min_match=1)
    assert drafted(drafter, opened(drafter, [[1, 2, 9, 5, 2, 8, 1, 2]], [8]))[0][:2] == [9, 5]


def test_a_longer_match_is_trusted_further() -> None:
    drafter = Ngram(stretch=2)
    got = drafted(drafter, opened(drafter, [[1, 2, 3, 4, 5, 6, 1, 2, 3], [1, 9, 8, 7, 6, 5, 1], [1, 2, 3]], [9, 7, 3]))
    assert [len(row) for row in got] == [6, 2, 0]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_text_shorter_than_the_n_gram_gets_no_draft_or_a_right_one(length: int) -> None:
    drafter = Ngram(max_match=6, min_match=3)
    assert drafted(drafter, opened(drafter, [[5] * length], [length])) == [[]]


@SMALL
@given(texts, st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=3))
def test_a_context_about_the_future_is_answered_as_if_it_had_come(text: list[int], futures: list[list[int]]) -> None:
    """Rows may name one slot and carry tokens that were never committed; they leave no trace."""
    drafter = Ngram(min_match=1)
    opened(drafter, [text], [len(text)])
    before = drafter._log.clone()
    imagined = [text + future for future in futures]
    ctx = context(imagined, torch.full((len(futures),), 2), drafter.spec.window, 9)
    assert drafted(drafter, ctx) == [naive(row, 6, 1, 4, 8) for row in imagined]
    assert torch.equal(drafter._log, before)


def test_a_closed_slot_is_forgotten() -> None:
    drafter = Ngram(min_match=1)
    ctx = opened(drafter, [[1, 2, 3, 1]], [4])
    drafter.close(ctx.slots)
    assert bool((drafter._log[ctx.slots] == -1).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_match": 2, "min_match": 3}, "1 <= min_match <= max_match <= 32; found 3 and 2"),
        ({"min_match": 0}, "found 0 and 6"),
        ({"max_match": 33}, "found 1 and 33"),
        ({"stretch": 0}, "stretch >= 1; found 0"),
    ],
)
def test_options_out_of_range_are_refused_with_their_values(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Ngram(**options)


def test_text_that_repeats_is_drafted_whole() -> None:
    table = torch.eye(6).roll(1, 1) * 9
    from specdec.testing import TableTarget

    [out] = Engine(TableTarget(table), "ngram", budget=9).generate([[0, 1, 2, 3, 4, 5, 0, 1]], max_tokens=25)
    assert out.tokens == [(i + 2) % 6 for i in range(25)]
    assert out.stats.tau == 8.0
