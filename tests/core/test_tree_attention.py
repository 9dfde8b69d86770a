"""The mask of a tree over cached rows against a loop, and the product against torch's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tree_strategies import parents, path_of

from specdec import tree
from specdec.attention import additive, attend, visible
from specdec.kvcache import Place


@given(parents(), st.sampled_from([None, 1, 2, 3, 5, 100]), st.integers(0, 3), st.data())
def test_a_node_sees_the_rows_before_the_anchor_and_its_own_path(
    batch: list[list[int]], window: int | None, slack: int, data: st.DataObject
) -> None:
    """With a window only positions less than `window` back; a node's position is start + depth."""
    rows, nodes = len(batch), len(batch[0])
    start = [data.draw(st.integers(0, 7)) for _ in batch]
    place = Place(torch.arange(rows), torch.tensor(start), nodes, max(start) + nodes + slack)
    up = torch.tensor(batch)
    reach = tree.ancestors(up)
    seen = visible(place, reach, reach.sum(-1) - 1, window)
    for b in range(rows):
        for i in range(nodes):
            path = path_of(batch[b], i)
            position = start[b] + len(path) - 1
            wanted = {row: row for row in range(start[b])} | {start[b] + j: start[b] + d for d, j in enumerate(path)}
            if batch[b][i] < 0 and i > 0:  # an unused node sees its own row as if it stood at the anchor's place
                wanted = {row: row for row in range(start[b])} | {start[b] + i: start[b]}
            near = [row for row, at in sorted(wanted.items()) if window is None or position - at < window]
            assert seen[b, i].nonzero()[:, 0].tolist() == near


@given(parents(), st.integers(1, 4))
def test_every_node_sees_something(batch: list[list[int]], window: int) -> None:
    """A row of a softmax without a finite entry would be NaN."""
    rows, nodes = len(batch), len(batch[0])
    reach = tree.ancestors(torch.tensor(batch))
    place = Place(torch.arange(rows), torch.full((rows,), 3), nodes, 3 + nodes)
    assert bool(visible(place, reach, reach.sum(-1) - 1, window).any(-1).all())


def test_an_additive_mask_is_zero_where_seen_and_minus_infinity_elsewhere() -> None:
    bias = additive(torch.tensor([[[True, False]]]), torch.bfloat16)
    assert (bias.shape, bias.dtype, bias.flatten().tolist()) == ((1, 1, 1, 2), torch.bfloat16, [0.0, -torch.inf])


@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (4, 4), (6, 2), (8, 1)])
@pytest.mark.parametrize(("dim", "v_dim"), [(8, 8), (8, 5)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_attend_is_scaled_dot_product_attention(
    heads: int, groups: int, dim: int, v_dim: int, dtype: torch.dtype, tolerance: float
) -> None:
    """The tolerance is some ten roundings of sums of a dozen terms of size 1."""
    generator = torch.Generator().manual_seed(heads * 100 + groups * 10 + v_dim)
    rows, nodes, span = 3, 5, 12
    q = torch.randn(rows, heads, nodes, dim, generator=generator, dtype=dtype)
    k = torch.randn(rows, groups, span, dim, generator=generator, dtype=dtype)
    v = torch.randn(rows, groups, span, v_dim, generator=generator, dtype=dtype)
    mask = torch.rand(rows, nodes, span, generator=generator) < 0.6
    mask[..., 0] = True
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask[:, None], scale=0.3, enable_gqa=True
    )
    found = attend(q, k, v, additive(mask, dtype), 0.3)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_attend_writes_into_none_of_its_inputs() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1, 2, 3, 4, generator=generator) for _ in range(3)]
    bias = torch.zeros(1, 1, 3, 3)
    before = [x.clone() for x in (*inputs, bias)]
    attend(*inputs, bias, 0.5)
    assert all(torch.equal(x, y) for x, y in zip((*inputs, bias), before, strict=True))
