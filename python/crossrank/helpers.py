"""Helpers for scripts that run as a job. An exception on one rank reaches the others as `RemoteError`.

The callables return JSON values: None, bool, int, float, str, bytes, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from . import _core
from .collective import Collective, native_of
from .errors import UsageError


def zero_first(group: Collective, function: Callable[[], Any], *, per: Literal["job", "node"] = "job") -> Any:
    """Runs the function on the first rank, then on all others. Returns each rank's own result.

    With `per="node"` the first rank of each node runs it first.

    >>> path = crossrank.zero_first(world, download)
    """
    if per not in ("job", "node"):
        raise UsageError(f"zero_first: per is {per!r}, expected 'job' or 'node'")
    return _core.zero_first(native_of(group), function, per == "node")


def zero_only(group: Collective, function: Callable[[], Any]) -> Any:
    """Runs the function on rank 0 only; None elsewhere. No rank waits.

    >>> crossrank.zero_only(world, write_report)
    """
    return _core.zero_only(native_of(group), function)


def compute_and_broadcast(group: Collective, function: Callable[[], Any], *, root: int = 0) -> Any:
    """Runs the function on the root and returns its result on all ranks.

    >>> seed = crossrank.compute_and_broadcast(world, lambda: 42)
    """
    return _core.compute_and_broadcast(native_of(group), function, root)


def gather_from_all_ranks(group: Collective, function: Callable[[], Any], *, root: int = 0) -> list[Any]:
    """Runs the function on every rank. Returns all results on the root, an empty list elsewhere.

    >>> losses = crossrank.gather_from_all_ranks(world, lambda: loss)
    """
    return _core.gather_from_all_ranks(native_of(group), function, root)


def reduce_and_broadcast(
    group: Collective, function: Callable[[], Any], reduce: Callable[[list[Any]], Any], *, root: int = 0
) -> Any:
    """Runs the function on every rank, then `reduce` on the root, and returns its result on all ranks.

    >>> mean = crossrank.reduce_and_broadcast(world, lambda: loss, statistics.mean)
    """
    return _core.reduce_and_broadcast(native_of(group), function, reduce, root)
