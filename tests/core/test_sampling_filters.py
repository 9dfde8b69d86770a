"""top_k, top_p and min_p against an oracle in plain Python, and the same whatever else is in the batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec import Sampling, SamplingParams, sampling

NEG = -math.inf


def naive(logits: list[float], params: SamplingParams) -> list[float]:
    """Filter and normalise one row: sort with the lowest id first on ties, then top_k, top_p, min_p."""
    if params.temperature == 0:
        best = logits.index(max(logits))
        return [float(i == best) for i in range(len(logits))]
    scaled = [x / params.temperature for x in logits]
    top = max(scaled)
    weight = [math.exp(x - top) for x in scaled]
    order = sorted(range(len(weight)), key=lambda i: (-weight[i], i))
    kept = order[: params.top_k] if params.top_k else order
    if params.top_p < 1:
        total, before, nucleus = sum(weight[i] for i in kept), 0.0, []
        for i in kept:
            if nucleus and before >= params.top_p * total:
                break
            nucleus.append(i)
            before += weight[i]
        kept = nucleus
    kept = [i for i in kept if weight[i] >= params.min_p * weight[kept[0]]]
    total = sum(weight[i] for i in kept)
    return [weight[i] / total if i in kept else 0.0 for i in range(len(weight))]


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, 50]),
    top_p=st.sampled_from([0.05, 0.31, 0.62, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.011, 0.13, 0.77]),
)
# Steps of 1/8 make ties common and keep every cut clear of rounding.
LOGIT = st.integers(-40, 40).map(lambda x: x / 8)


@settings(max_examples=150)
@given(st.lists(PARAMS, min_size=1, max_size=4), st.integers(1, 12), st.data())
def test_the_distribution_is_that_of_the_oracle(batch: list[SamplingParams], vocab: int, data: st.DataObject) -> None:
    rows = [data.draw(st.lists(LOGIT, min_size=vocab, max_size=vocab)) for _ in batch]
    p = Sampling.of(batch, range(len(batch))).distribution(torch.tensor(rows)[:, None])[:, 0]
    for row, params in enumerate(batch):
        torch.testing.assert_close(p[row], torch.tensor(naive(rows[row], params)), rtol=1e-5, atol=1e-7)


def _tied(rows: int, vocab: int, seed: int) -> Tensor:
    """Logits with many ties, as those of a model in bfloat16 have."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, 1, vocab, generator=generator) * 2).round()


NEIGHBOURS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=50),
    SamplingParams(temperature=1.0, top_p=0.999999),
    SamplingParams(temperature=1.0, min_p=0.001),
    SamplingParams(temperature=0.0),
]
FILTERED = [
    SamplingParams(temperature=1.0, top_k=2),
    SamplingParams(temperature=1.0, top_p=0.3),
    SamplingParams(temperature=1.0, top_k=40, top_p=0.5),
    SamplingParams(temperature=1.0, min_p=0.6),
    SamplingParams(temperature=1.0),
]


@pytest.mark.parametrize("vocab", [40, 3000])
@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=["none", "top_k", "top_p", "min_p", "greedy"])
@pytest.mark.parametrize("params", FILTERED, ids=["top_k", "top_p", "both", "min_p", "none"])
def test_a_neighbour_changes_no_token(params: SamplingParams, neighbour: SamplingParams, vocab: int) -> None:
    """A filter must not lapse beside a row that has none, and ties must not be cut by the neighbour's top_k."""
    rows = 60
    logits, positions = _tied(rows, vocab, 3), torch.arange(rows)[:, None]
    alone = Sampling.of([params] * rows, range(rows)).pick(logits, positions)
    mixed = Sampling.of([params] * rows + [neighbour], range(rows + 1))
    beside = mixed.pick(torch.cat([logits, logits[:1]]), torch.arange(rows + 1)[:, None])
    assert torch.equal(beside[:rows], alone)


@pytest.mark.parametrize("params", FILTERED, ids=["top_k", "top_p", "both", "min_p", "none"])
def test_other_nodes_change_no_token(params: SamplingParams) -> None:
    """A draft scores several nodes at once and plain decoding one: each must be filtered as it would be alone."""
    nodes, vocab = 8, 3000
    logits = _tied(nodes, vocab, 4)[:, 0][None] * torch.linspace(0.01, 1.5, nodes)[None, :, None]
    together = Sampling.of([params], [5]).pick(logits, torch.arange(nodes)[None])
    for node in range(nodes):
        alone = Sampling.of([params], [5]).pick(logits[:, node : node + 1], torch.tensor([[node]]))
        assert int(alone) == int(together[0, node])


def test_a_cut_at_the_exact_share_of_the_nucleus_does_not_depend_on_the_batch() -> None:
    """top_p equal to a cumulated share of the row; a sum in another order would cut one token later."""
    vocab, rows = 3000, 40
    logits = torch.randn(rows, 1, vocab, generator=torch.Generator().manual_seed(6))
    for row in range(rows):
        share = logits[row, 0].sort(descending=True).values[:30].softmax(-1)
        params = SamplingParams(temperature=1.0, top_k=30, top_p=float(share.cumsum(-1)[9]))
        alone = Sampling.of([params], [row]).distribution(logits[row : row + 1])
        pair = Sampling.of([params, NEIGHBOURS[0]], [row, 1])
        assert torch.equal(pair.distribution(logits[row : row + 1].expand(2, -1, -1))[:1], alone)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.5),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=0.4, top_p=0.95, min_p=0.01),
        SamplingParams(temperature=3.0, top_p=0.99),
        SamplingParams(temperature=3.0, min_p=1e-6),
    ],
    ids=["top_p", "min_p", "cool", "uncovered-top_p", "uncovered-min_p"],
)
def test_the_head_keeps_what_a_full_sort_keeps(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = _tied(20, 3000, 7)
    rows = Sampling.of([params] * 20, range(20))
    head = rows.distribution(logits)
    monkeypatch.setattr(sampling, "_HEAD", 1 << 30)
    assert torch.equal(head > 0, rows.distribution(logits) > 0)
    torch.testing.assert_close(head, rows.distribution(logits), rtol=1e-6, atol=0)


def test_the_head_is_refused_where_a_filter_may_reach_past_it() -> None:
    """A flat row keeps 2971 of its 3000 tokens, the first with a share of 0.9901 or more."""
    rows = Sampling.of([SamplingParams(temperature=1.0, top_p=0.9901)], [0])
    assert int((rows.distribution(torch.zeros(1, 1, 3000)) > 0).sum()) == 2971


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_the_best_are_those_of_a_stable_sort(k: int, seed: int) -> None:
    """Zeros of both signs, infinities and ties in the order of their ids."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(3, 40, generator=generator) * 1.5).round() * torch.tensor([1.0, 1e-42, 1e38])[:, None]
    x[torch.rand(3, 40, generator=generator) < 0.2] = NEG
    x[torch.rand(3, 40, generator=generator) < 0.1] = -0.0
    full = x.sort(dim=-1, descending=True, stable=True)
    values, ids = sampling._best(x, k)
    assert torch.equal(ids, full.indices[:, :k])
    assert torch.equal(values, full.values[:, :k])
