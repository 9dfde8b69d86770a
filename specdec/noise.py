"""Noise keyed by (seed, position, token): a draw depends on nothing else.

So neither batching nor drafting nor the order of calls can change it. Gumbel noise turned into an argmax draws
from a softmax exactly; keyed noise makes that draw a function of seed and position.
The hash mixes 64-bit keys per position (splitmix64, Steele et al. 2014) and two rounds of a 32-bit finaliser per
token; the uniform is kept near zero in floating point, where the winners of a race are decided.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Streams are independent noises for one position.
SAMPLE, DRAFT, COIN, RESIDUAL = 0, 1, 2, 3

_TOP = 1.0 - 2.0**-24


def _shift(x: Tensor, bits: int, width: int) -> Tensor:
    # torch's >> keeps the sign; the hash needs zeros.
    return (x >> bits) & ((1 << (width - bits)) - 1)


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30, 64)) * -4658895280553007687
    x = (x ^ _shift(x, 27, 64)) * -7723592293110705685
    return x ^ _shift(x, 31, 64)


def _mix32(x: Tensor, spare: Tensor) -> Tensor:
    """Mix int32 in place. Over a vocabulary this is bound by memory, so nothing is allocated."""
    for bits, factor in ((16, 2146121005), (15, -2073254261), (16, 1)):
        torch.bitwise_right_shift(x, bits, out=spare)
        x.bitwise_xor_(spare.bitwise_and_((1 << (32 - bits)) - 1))
        if factor != 1:
            x.mul_(factor)
    return x


def _low32(x: Tensor) -> Tensor:
    """The low 32 bits of an int64 tensor as int32, without a conversion that could overflow."""
    low = x & 0xFFFFFFFF
    return torch.where(low >= 1 << 31, low - (1 << 32), low).to(torch.int32)


def uniform(seed: Tensor, position: Tensor, ids: Tensor, stream: int = SAMPLE) -> Tensor:
    """Uniforms in (0, 1): one for each (seed, position, id), float32.

    seed, position broadcast against each other [...]; ids broadcast against [..., K]; result [..., K].
    """
    key = _mix64(_mix64(seed * 6364136223846793005 + stream * 1442695040888963407) + position * -7046029254386353131)
    low, high = _low32(key)[..., None], _low32(_shift(key, 32, 64))[..., None]
    x = ids.to(torch.int32) * -1640531527 + low
    spare = torch.empty_like(x)
    x = _mix32(_mix32(x, spare).bitwise_xor_(high), spare).bitwise_and_(0x7FFFFFFF)
    return x.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_TOP)


def gumbel(seed: Tensor, position: Tensor, ids: Tensor, stream: int = SAMPLE) -> Tensor:
    """Standard Gumbel noise with the shapes of `uniform`, float32."""
    return uniform(seed, position, ids, stream).neg_().log1p_().neg_().log_().neg_()
