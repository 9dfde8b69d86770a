"""Products with constant weights: plain, or laid out once for the CPU's matrix units.

In bfloat16 on a CPU, torch lays a weight out anew at every product; `packed` does it once, through operators that
torch keeps private. They are used only where they exist and agree with the plain product at load.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

_log = logging.getLogger(__name__)
#: The number of rows a packed weight is laid out for. Its layout is then kept as it is for any other number.
_PACK_ROWS = 1


class Linear(Protocol):
    """A product with a constant weight [out, in] and an optional bias."""

    def __call__(self, x: Tensor) -> Tensor:
        """X [B, N, in] -> [B, N, out]."""

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The product of x, added to `other` [B, N, out]."""

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product of x, multiplied by `other` [B, N, out], element by element."""

    def silu(self, x: Tensor) -> Tensor:
        """The product of x through x * sigmoid(x)."""


class Plain:
    """A product as torch computes it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return functional.linear(x, self.weight, self.bias)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        return self(x).add_(other)

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        return self(x).mul_(other)

    def silu(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return functional.silu(self(x), inplace=True)


class Packed:
    """A product with a weight in the layout of oneDNN; what follows the product happens in the same pass."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        ops: Any = torch.ops.mkldnn
        self.weight = ops._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
        self.bias = bias
        self._unary = ops._linear_pointwise.default
        self._binary = ops._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        product: Tensor = self._unary(x, self.weight, self.bias, "none", [], "")
        return product

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        total: Tensor = self._binary(x, other, self.weight, self.bias, "add")
        return total

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        total: Tensor = self._binary(x, other, self.weight, self.bias, "mul")
        return total

    def silu(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        product: Tensor = self._unary(x, self.weight, self.bias, "swish", [], "")
        return product


def make(weight: Tensor, bias: Tensor | None = None, *, pack: bool) -> Linear:
    """The product with `weight` [out, in], packed where that is asked for, possible and right."""
    if pack and weight.device.type == "cpu":
        packed = _packed(weight, bias)
        if packed is not None:
            return packed
    return Plain(weight, bias)


def _packed(weight: Tensor, bias: Tensor | None) -> Packed | None:
    """A packed product, or None where torch cannot pack or the packed product is not the plain one."""
    try:
        packed = Packed(weight, bias)
        if _agree(packed, Plain(weight, bias)):
            return packed
        _log.warning("a packed product of shape %s differs from the plain one; it is not used", list(weight.shape))
    except (AttributeError, RuntimeError, TypeError) as error:
        _log.warning("weights cannot be packed for this CPU: %s", error)
    return None


def _agree(a: Linear, b: Plain) -> bool:
    """Whether two products are equal up to rounding, on fixed inputs, with and without what may follow them."""
    out, width = b.weight.shape
    rows = torch.linspace(-1, 1, 3 * width, device=b.weight.device).sin().mul(3)
    x = rows.view(1, 3, width).to(b.weight.dtype)
    other = torch.linspace(-1, 1, 3 * out).view(1, 3, out).to(b.weight.dtype)
    pairs = [
        (a(x), b(x)),
        (a.silu(x), b.silu(x)),
        (a.plus(x, other), b.plus(x, other)),
        (a.times(x, other), b.times(x, other)),
    ]
    # A half-precision result may be rounded once more on one side; a float32 sum may run in another order.
    bound = 1e-5 if b.weight.dtype == torch.float32 else 4 * torch.finfo(b.weight.dtype).eps
    return all((mine - plain).abs().max() <= bound * plain.abs().max().clamp(min=bound) for mine, plain in pairs)
