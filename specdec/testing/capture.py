"""Whether a function of tensors could be captured in a CUDA graph, told without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only


def assert_capture_safe(call: Callable[..., Any], *args: Any) -> Any:
    """Run `call` on tensors without data; fails where it reads a value or makes a shape that depends on data.

    args may hold tensors in tuples, lists, dicts, drafts, scores or samplings. Returns what `call` returned: fake
    tensors whose shapes are right.
    """
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = [_fake(mode, arg) for arg in args]
        try:
            return call(*fake)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(
                f"{getattr(call, '__qualname__', call)!r} is not capture safe: {type(error).__name__}: "
                f"{str(error).splitlines()[0]}"
            ) from error


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    def convert(x: Tensor) -> Tensor:
        return mode.from_tensor(x)

    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        parts = {
            name: _fake(mode, getattr(value, name)) for name in value.__dataclass_fields__ if _is_init(value, name)
        }
        return type(value)(**parts)
    return tree_map_only(torch.Tensor, convert, value)


def _is_init(value: Any, name: str) -> bool:
    return bool(value.__dataclass_fields__[name].init)
