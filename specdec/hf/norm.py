"""The root-mean-square norm in few operators."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class RMSNorm:
    """x / sqrt(mean(x * x) + eps) * weight, over the last dimension.

    On a CPU torch composes that norm of eight operators, and has one kernel for the layer norm. The layer norm of
    [x, -x] is the norm of x in its first half: the mean is zero and the variance is the mean of x * x.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        self._both = torch.stack([weight, weight])  # [2, H]
        self._signs = weight.new_tensor([[1.0], [-1.0]])

    def __call__(self, x: Tensor) -> Tensor:
        """The norm of x [..., H], contiguous."""
        if x.device.type != "cpu":
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        both = x.unsqueeze(-2) * self._signs  # [..., 2, H]
        return functional.layer_norm(both, self._both.shape, self._both, None, self.eps)[..., 0, :].contiguous()
