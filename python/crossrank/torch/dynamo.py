"""Keeps torch.compile away from methods that it cannot compile."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

__all__ = ["not_compiled"]

T = TypeVar("T")

try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # an older torch

    def _without_dynamo(method: FunctionType) -> Any:
        from torch._compile import _disable_dynamo

        return _disable_dynamo(method)

else:

    def _without_dynamo(method: FunctionType) -> Any:
        set_code_exec_strategy(method.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
        # With this mark Dynamo does not trace into the method when a compiled function calls it.
        method._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
        return method


def not_compiled(cls: type[T]) -> type[T]:
    """Runs the methods of a class, and all that they call, without Dynamo.

    `torch._disable_dynamo` does the same, but slows down each call and imports Dynamo, which takes a second. It serves torches
    that have nothing better.
    """
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType):
            setattr(cls, name, _without_dynamo(member))
    return cls
