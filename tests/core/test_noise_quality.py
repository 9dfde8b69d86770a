"""The keyed noise: uniform, independent, and a function of its key alone.

Each statistical test has a false-alarm chance of 1e-4 (1e-4 in all where it looks several times: the bound is divided
by the number of looks). Seeds are fixed, so a hash that passes once passes always.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from specdec import noise

ALARM = 1e-4
STREAMS = [noise.SAMPLE, noise.DRAFT, noise.COIN, noise.RESIDUAL]
ZERO = torch.zeros(1, dtype=torch.int64)
IDS = torch.arange(1)


def _along(axis: str, count: int, stream: int, step: int = 1) -> np.ndarray:
    """Draw uniforms that differ in one part of the key: [count]."""
    moving = torch.arange(count) * step
    if axis == "ids":
        return noise.uniform(ZERO, ZERO + 5, moving, stream)[0].numpy()
    if axis == "seed":
        return noise.uniform(moving, ZERO + 5, IDS, stream)[:, 0].numpy()
    return noise.uniform(ZERO + 3, moving, IDS, stream)[:, 0].numpy()


@pytest.mark.parametrize("step", [1, 2, 7919, 1 << 20])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("axis", ["ids", "seed", "position"])
def test_uniforms_are_uniform_along_every_part_of_the_key(axis: str, stream: int, step: int) -> None:
    """Kolmogorov-Smirnov over 50,000 draws; 48 looks. Ids stay below 2**31."""
    count = 2000 if axis == "ids" and step > 7919 else 50_000
    assert stats.kstest(_along(axis, count, stream, step), "uniform").pvalue > ALARM / 48


@pytest.mark.parametrize("stream", STREAMS)
def test_uniforms_stay_uniform_near_zero(stream: int) -> None:
    """The winners of a race lie near zero: of 4 million draws, those below 1e-3 are uniform there too."""
    u = noise.uniform(torch.arange(2000), torch.arange(2000) * 3, torch.arange(2000), stream).flatten()
    low = u[u < 1e-3].double().numpy() * 1e3
    assert abs(len(low) - 4000) < 5 * 4000**0.5
    assert stats.kstest(low, "uniform").pvalue > ALARM / 4


def _corners(wide: bool) -> tuple[Tensor, Tensor]:
    big = 2**62 if wide else 2**30
    seeds = torch.tensor([0, 1, -1, big, -big, 2**63 - 1, -(2**63)])
    return seeds[:, None], torch.tensor([0, 1, 2**31, 2**40])


def test_uniforms_are_never_zero_nor_one() -> None:
    seeds, positions = _corners(wide=True)
    u = noise.uniform(seeds, positions, torch.arange(50_000))
    assert bool(((u > 0) & (u < 1)).all())


def test_gumbels_are_finite() -> None:
    seeds, positions = _corners(wide=True)
    assert bool(noise.gumbel(seeds, positions, torch.arange(50_000)).isfinite().all())


def test_the_argmax_of_gumbels_draws_from_the_softmax() -> None:
    """Chi-square over 100,000 positions for each of three sharpnesses."""
    for sharpness in (0.5, 2.0, 5.0):
        logits = torch.randn(30, generator=torch.Generator().manual_seed(1)) * sharpness
        race = logits + noise.gumbel(ZERO + 11, torch.arange(100_000), torch.arange(30))
        seen = torch.bincount(race.argmax(-1), minlength=30).double()
        expected = logits.double().softmax(-1) * 100_000
        rare = expected < 5
        seen = torch.cat([seen[~rare], seen[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
        full = expected > 0
        assert stats.chisquare(seen[full].numpy(), expected[full].numpy()).pvalue > ALARM / 3


@pytest.mark.parametrize("sign", [1, -1])
def test_gumbels_have_the_mean_and_spread_of_their_law(sign: int) -> None:
    """Mean 0.5772 and variance pi**2 / 6, within four standard errors of a million draws."""
    x = noise.gumbel(sign * torch.arange(1000), ZERO, torch.arange(1000)).double().flatten()
    spread = torch.pi / 6**0.5
    assert abs(float(x.mean()) - 0.5772157) < 4 * spread / 1000
    assert abs(float(x.std()) - spread) < 4 * spread * 1.1**0.5 / 1000


def _independent(a: np.ndarray, b: np.ndarray, looks: int) -> bool:
    """Whether pairs fill an 8 by 8 grid evenly (chi-square)."""
    grid, _, _ = np.histogram2d(a, b, bins=8, range=[[0, 1], [0, 1]])
    return bool(stats.chisquare(grid.ravel()).pvalue > ALARM / looks)


def _field(stream: int = noise.SAMPLE, seed: int = 0, shift: int = 0, first: int = 0) -> np.ndarray:
    """Uniforms of 300 positions and 300 ids."""
    u = noise.uniform(ZERO + seed, torch.arange(300) + shift, torch.arange(300) + first, stream)
    return u.flatten().numpy()


def test_streams_are_independent() -> None:
    fields = [_field(stream) for stream in STREAMS]
    pairs = [(a, b) for i, a in enumerate(fields) for b in fields[:i]]
    assert all(_independent(a, b, len(pairs)) for a, b in pairs)


@pytest.mark.parametrize("step", [1, 2, 256, 65536])
def test_seeds_are_independent(step: int) -> None:
    assert _independent(_field(seed=3), _field(seed=3 + step), 4)


@pytest.mark.parametrize("step", [1, 2, 3, 256])
def test_positions_are_independent(step: int) -> None:
    assert _independent(_field(), _field(shift=step), 4)


@pytest.mark.parametrize("step", [1, 2, 256, 65536])
def test_ids_are_independent(step: int) -> None:
    assert _independent(_field(), _field(first=step), 4)


def test_a_seed_and_a_position_do_not_trade_places() -> None:
    """Request 1 at position 2 must not draw what request 2 draws at position 1."""
    seeds, positions = torch.arange(40)[:, None], torch.arange(40)
    u = noise.uniform(seeds, positions, torch.arange(4))
    assert u.flatten(0, 1).unique(dim=0).shape[0] == 1600


@given(st.lists(st.integers(0, 151_935), min_size=1, max_size=20), st.integers(0, 2**40), st.integers(0, 2**20))
def test_any_subset_of_ids_draws_the_same_noise(ids: list[int], seed: int, position: int) -> None:
    key = (ZERO + seed, ZERO + position)
    whole = noise.gumbel(*key, torch.arange(152_000))[0]
    assert torch.equal(noise.gumbel(*key, torch.tensor(ids))[0], whole[ids])


@given(st.integers(1, 5), st.integers(1, 5))
def test_noise_does_not_depend_on_the_shape_of_the_batch(rows: int, nodes: int) -> None:
    seeds = torch.arange(rows) * 31
    positions = torch.arange(rows * nodes).view(rows, nodes)
    together = noise.gumbel(seeds[:, None], positions, torch.arange(37))
    for row in range(rows):
        for node in range(nodes):
            one = noise.gumbel(seeds[row : row + 1], positions[row, node : node + 1], torch.arange(37))
            assert torch.equal(one[0], together[row, node])
