"""Types that several modules share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any, Literal, overload

# A crossrank, torch, numpy or DLPack tensor on the CPU or a GPU, or an object with the buffer protocol.
TensorLike = Any
# Seconds, or a timedelta.
Timeout = float | timedelta
# "cpu", "cuda" for the GPU of this process, "cuda:1" and so on, or a torch.device.
Device = Any
Shape = int | Sequence[int]
Weights = Mapping[str, TensorLike]
ReduceOp = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]
# The order in which a reduction combines the ranks' values. On the CPU it is always that of the ranks.
ReduceOrder = Literal["any", "rank"]


@overload
def seconds(timeout: Timeout) -> float: ...
@overload
def seconds(timeout: Timeout | None) -> float | None: ...
def seconds(timeout: Timeout | None) -> float | None:
    """Returns a timeout in seconds."""
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if timeout is not None and not isinstance(timeout, Real):
        raise TypeError(f"a timeout is a {type(timeout).__name__}. Pass seconds or a datetime.timedelta")
    return timeout


def path_text(path: str | os.PathLike[str]) -> str:
    """Returns a path as text. `ValueError`, as from `open`, when it has a null byte."""
    text = os.fspath(path)
    if isinstance(text, str) and "\0" in text:
        raise ValueError("embedded null byte")
    return text
