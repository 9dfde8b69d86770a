"""Products with constant weights: plain, laid out once for the CPU's matrix units, or widened to float32.

In bfloat16 on a CPU, torch lays a weight out anew at every product; `Packed` does it once, through operators that
torch keeps private. They are used only where they exist and agree with the plain product at load. A CPU without
instructions for bfloat16 multiplies a matrix row by row, so that eight rows cost eight times one; `Widened` multiplies
in float32 as soon as that is quicker.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

_log = logging.getLogger(__name__)
#: The number of rows a packed weight is laid out for. Its layout is then kept as it is for any other number.
_PACK_ROWS = 1
#: From this many rows on, widening a weight and one float32 product take less time than a product of each row.
_WIDE_ROWS = 4
#: Elements of a weight widened at a time, so that the float32 copy is still in the cache when it is multiplied.
_WIDE_SLICE = 1 << 20


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


class Widened(Plain):
    """A product with a half-precision weight: one of few rows as torch computes it, one of more in float32."""

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        if x.numel() < _WIDE_ROWS * x.shape[-1]:
            return super().__call__(x)
        rows = x.reshape(-1, x.shape[-1]).float()
        out = rows.new_empty(len(rows), len(self.weight))
        step = max(1, _WIDE_SLICE // x.shape[-1])
        for at in range(0, len(self.weight), step):
            torch.mm(rows, self.weight[at : at + step].float().T, out=out[:, at : at + step])
        if self.bias is not None:
            out += self.bias
        return out.to(x.dtype).view(*x.shape[:-1], -1)


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
        if weight.dtype in (torch.bfloat16, torch.float16):
            return Widened(weight, bias)
    return Plain(weight, bias)


def _packed(weight: Tensor, bias: Tensor | None) -> Packed | None:
    """A packed product, or None where torch cannot pack or the packed product is not the plain one."""
    try:
        packed = Packed(weight, bias)
        if _agree(packed, Plain(weight, bias)):
            return packed
        _tell(f"a packed product of shape {list(weight.shape)} differs from the plain one; it is not used")
    except (AttributeError, RuntimeError, TypeError) as error:
        _tell(f"weights in {str(weight.dtype).removeprefix('torch.')} cannot be packed for this CPU: {error}")
    return None


@cache
def _tell(message: str) -> None:
    """Say it once: a model has hundreds of weights. It is slower, not wrong."""
    _log.info(message)


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
