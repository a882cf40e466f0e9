"""Keeps torch.compile away from methods that it cannot compile."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

import torch

try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # an older torch
    set_code_exec_strategy = None

__all__ = ["not_compiled"]

T = TypeVar("T")


def not_compiled(cls: type[T]) -> type[T]:
    """Runs the methods of a class, and all that they call, without Dynamo.

    `torch._disable_dynamo` does the same, but slows down each call and imports Dynamo, which takes a second.
    """
    members = [(name, member) for name, member in vars(cls).items() if isinstance(member, FunctionType)]
    if set_code_exec_strategy is None:
        for name, member in members:
            setattr(cls, name, torch._disable_dynamo(member))
        return cls
    strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for _, member in members:
        set_code_exec_strategy(member.__code__, strategy)
        # With this mark Dynamo does not trace into the method when a compiled function calls it.
        member._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
    return cls
