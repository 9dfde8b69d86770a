"""Packed and widened products equal plain ones; packed ones that do not are left alone."""

from __future__ import annotations

import pytest
import torch

from specdec.hf import linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 70])
def test_packed_equals_plain(dtype, bias, rows):
    """Both stray from the exact product: by their rounding to the dtype, and by a float32 sum of 64 terms."""
    torch.manual_seed(3)
    weight, offset = torch.randn(96, 64, dtype=dtype), torch.randn(96, dtype=dtype) if bias else None
    packed, plain = linear.make(weight, offset, pack=True), linear.Plain(weight, offset)
    if not isinstance(packed, linear.Packed):
        pytest.skip("this CPU or this torch cannot pack")
    assert_as_exact(packed, plain, rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 8, 70])
@pytest.mark.parametrize("piece", [1 << 20, 64 * 7])
def test_widened_equals_plain(dtype, bias, rows, piece, monkeypatch):
    monkeypatch.setattr(linear, "_WIDE_SLICE", piece)
    torch.manual_seed(3)
    weight, offset = torch.randn(96, 64, dtype=dtype), torch.randn(96, dtype=dtype) if bias else None
    assert_as_exact(linear.Widened(weight, offset), linear.Plain(weight, offset), rows)


def assert_as_exact(product, plain, rows):
    """Not further from the exact product than twice what the plain one is."""
    dtype, weight, offset = plain.weight.dtype, plain.weight, plain.bias
    x, other = torch.randn(2, rows, 64, dtype=dtype), torch.randn(2, rows, 96, dtype=dtype)
    exact = linear.Plain(weight.double(), None if offset is None else offset.double())
    for name, args in (("__call__", (x,)), ("plus", (x, other)), ("times", (x, other)), ("silu", (x,))):
        expected = getattr(exact, name)(*(arg.double() for arg in args))
        error = (getattr(product, name)(*args) - expected).abs().max()
        summed = 64 * torch.finfo(torch.float32).eps * expected.abs().max()
        assert error <= 2 * (getattr(plain, name)(*args) - expected).abs().max() + summed


def test_a_product_that_packing_changes_stays_plain(monkeypatch):
    monkeypatch.setattr(linear.Packed, "__call__", lambda self, x: torch.zeros(1, 3, 96))
    assert type(linear.make(torch.randn(96, 64), pack=True)) is linear.Plain


def test_without_the_private_operators_products_stay_plain(monkeypatch):
    def absent(self, weight, bias=None):
        raise AttributeError("_reorder_linear_weight")

    monkeypatch.setattr(linear.Packed, "__init__", absent)
    assert type(linear.make(torch.randn(96, 64), pack=True)) is linear.Plain
    assert type(linear.make(torch.randn(96, 64, dtype=torch.bfloat16), pack=True)) is linear.Widened
