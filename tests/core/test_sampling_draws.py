"""What `pick` draws: the distribution it states, keyed by seed and position, the argmax at temperature 0."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdec import Sampling, SamplingParams, noise

#: Chance that one chi-square below rejects a sound draw, were the seeds drawn afresh; they are fixed.
ALARM = 1e-4
KINDS = {
    "plain": SamplingParams(temperature=1.0),
    "cool": SamplingParams(temperature=0.5),
    "top_k": SamplingParams(temperature=1.0, top_k=4),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.1),
    "all": SamplingParams(temperature=1.4, top_k=9, top_p=0.9, min_p=0.02),
}


def _logits(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 1.5


@pytest.mark.parametrize("along", ["seeds", "positions"])
@pytest.mark.parametrize("kind", KINDS)
def test_pick_draws_from_the_stated_distribution(kind: str, along: str) -> None:
    draws, vocab = 30_000, 12
    logits = _logits(1, 1, vocab)
    if along == "seeds":
        rows = Sampling.of([KINDS[kind]] * draws, range(0, 13 * draws, 13))
        drawn = rows.pick(logits.expand(draws, 1, -1), torch.full((draws, 1), 9)).flatten()
        p = rows.rows(torch.tensor([0])).distribution(logits)[0, 0]
    else:
        rows = Sampling.of([KINDS[kind]], [17])
        drawn = rows.pick(logits.expand(1, draws, -1), torch.arange(draws)[None]).flatten()
        p = rows.distribution(logits)[0, 0]
    seen, expected = torch.bincount(drawn, minlength=vocab).double(), p.double() * draws
    assert int(seen[p == 0].sum()) == 0
    rare = (expected < 5) & (p > 0)
    cells = torch.stack([seen, expected])[:, (p > 0) & ~rare]
    cells = torch.cat([cells, torch.stack([seen[rare].sum(), expected[rare].sum()])[:, None]], 1)
    cells = cells[:, cells[1] > 0]
    assert stats.chisquare(cells[0].numpy(), (cells[1] / cells[1].sum() * draws).numpy()).pvalue > ALARM


@given(st.integers(2, 60), st.integers(0, 2**31), st.sampled_from(sorted(KINDS)))
def test_pick_among_candidates_is_pick_over_the_vocabulary_with_the_rest_ruled_out(
    vocab: int, seed: int, kind: str
) -> None:
    """A race over ids in another order, or over fewer of them, has the same winner."""
    logits = _logits(3, 2, vocab, seed=seed)
    positions = torch.arange(6).view(3, 2)
    rows = Sampling.of([KINDS[kind]] * 3, [seed, seed + 1, seed + 2])
    allowed = rows.distribution(logits) > 0
    ruled = (logits / KINDS[kind].temperature).masked_fill(~allowed, -torch.inf)
    plain = Sampling.of([SamplingParams(temperature=1.0)] * 3, [seed, seed + 1, seed + 2])
    assert torch.equal(rows.pick(logits, positions), plain.pick(ruled, positions))


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=3, top_p=0.5, min_p=0.1)])
@pytest.mark.parametrize("neighbour", [None, SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=2)])
def test_temperature_0_takes_the_lowest_id_of_tied_logits(
    params: SamplingParams, neighbour: SamplingParams | None
) -> None:
    kinds = [params] if neighbour is None else [params, neighbour]
    logits = torch.tensor([0.0, 1.0, 1.0, -1.0, 1.0]).expand(len(kinds), 1, 5)
    rows = Sampling.of(kinds, range(len(kinds)))
    assert int(rows.pick(logits, torch.zeros(len(kinds), 1).long())[0, 0]) == 1
    assert rows.distribution(logits)[0, 0].tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("temperature", [1e-45, 1e-40, 1e-20, 1e-6])
def test_a_temperature_near_0_overflows_into_no_nan(temperature: float) -> None:
    rows = Sampling.of([SamplingParams(temperature=temperature, top_p=0.9)], [0])
    logits = torch.tensor([[[30.0, -20.0, 29.0]]])
    assert rows.distribution(logits).tolist() == [[[1.0, 0.0, 0.0]]]
    assert int(rows.pick(logits, torch.zeros(1, 1).long())) == 0


def test_each_row_keeps_its_own_options() -> None:
    """Request 0's temperature and filters used for a whole batch is a known fault of another engine."""
    kinds = [SamplingParams(), *KINDS.values()]
    logits, positions = _logits(len(kinds), 4, 12), torch.arange(4).expand(len(kinds), 4)
    together = Sampling.of(kinds, range(len(kinds))).pick(logits, positions)
    for row, params in enumerate(kinds):
        alone = Sampling.of([params], [row]).pick(logits[row : row + 1], positions[:1])
        assert torch.equal(alone[0], together[row])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9))
def test_named_rows_draw_what_they_drew_in_the_batch(index: list[int]) -> None:
    kinds = [SamplingParams(), *KINDS.values()]
    logits, positions = _logits(7, 3, 12), torch.arange(21).view(7, 3)
    rows, some = Sampling.of(kinds, range(7)), torch.tensor(index)
    assert torch.equal(rows.rows(some).pick(logits[some], positions[some]), rows.pick(logits, positions)[some])


def test_the_streams_draw_apart() -> None:
    rows, logits = Sampling.uniform(1, temperature=1.0), torch.zeros(1, 400, 50)
    drawn = [rows.pick(logits, torch.arange(400)[None], stream) for stream in (noise.SAMPLE, noise.DRAFT)]
    # 400 draws of 50 agree 8 times on average; 24 or more has a chance of 4e-6.
    assert int((drawn[0] == drawn[1]).sum()) < 24


def test_a_masked_token_is_never_drawn() -> None:
    logits = torch.zeros(1, 5000, 4)
    logits[..., 2] = -torch.inf
    drawn = Sampling.uniform(1, temperature=5.0).pick(logits, torch.arange(5000)[None])
    assert sorted(set(drawn.flatten().tolist())) == [0, 1, 3]


def test_uniform_makes_rows_with_consecutive_seeds_and_no_filter() -> None:
    rows = Sampling.uniform(3, temperature=0.5, seed=8)
    assert rows.seed.tolist() == [8, 9, 10]
    assert rows.temperature.tolist() == [0.5] * 3
    assert not rows.rule.greedy
    assert not rows.rule.filtered


@pytest.mark.parametrize("name", ["pick", "distribution"])
def test_sampling_writes_into_no_logits(name: str) -> None:
    logits = _logits(2, 2, 12)
    before = logits.clone()
    rows = Sampling.of([KINDS["all"], SamplingParams()], [0, 1])
    getattr(rows, name)(logits, *([torch.zeros(2, 2).long()] if name == "pick" else []))
    assert torch.equal(logits, before)
