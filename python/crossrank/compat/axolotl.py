"""The helpers of axolotl's `axolotl.utils.distributed`, over crossrank.

Values keep their type and all their digits, where axolotl sends 32-bit floats. A function that raises on one rank ends the
call on all ranks with its message, where axolotl's other ranks wait forever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed

import crossrank
from crossrank import _core

from . import groups

__all__ = [
    "barrier",
    "broadcast_dict",
    "compute_and_broadcast",
    "gather_from_all_ranks",
    "gather_scalar_from_all_ranks",
    "get_world_size",
    "is_distributed",
    "is_local_main_process",
    "is_main_process",
    "reduce_and_broadcast",
    "zero_first",
    "zero_only",
]


def _announced(variable: str) -> int | None:
    """Returns a variable of the launcher's. None unless the rank and the world size are announced, too."""
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", variable)]
    return int(values[-1]) if all(value.isdecimal() for value in values) else None


def is_distributed() -> bool:
    """Returns whether there is more than one rank. Connects the ranks only if the launcher has not set `WORLD_SIZE`.

    >>> if is_distributed():
    ...     barrier()
    """
    if groups.torch_is_initialized():
        return torch.distributed.get_world_size() > 1
    size = _announced("WORLD_SIZE")
    return (groups.world().world_size if size is None else size) > 1


def is_main_process() -> bool:
    """Returns whether this is rank 0. Connects the ranks only if the launcher has not set `RANK`.

    >>> if is_main_process():
    ...     print("loss", loss)
    """
    if groups.torch_is_initialized():
        return torch.distributed.get_rank() == 0
    rank = _announced("RANK")
    return (groups.world().rank if rank is None else rank) == 0


def is_local_main_process() -> bool:
    """Returns whether this is the first rank of its node. Connects the ranks only if the launcher has not set `LOCAL_RANK`.

    >>> if is_local_main_process():
    ...     cache.mkdir()
    """
    rank = _announced("LOCAL_RANK")
    return (groups.world().local_rank if rank is None else rank) == 0


def get_world_size() -> int:
    """Returns the number of ranks that the launcher announced; 1 without a launcher.

    >>> batch_size = total // get_world_size()
    """
    return int(os.environ.get("WORLD_SIZE", "1"))


def barrier() -> None:
    """Blocks until all ranks have called it. Does nothing when there is one rank.

    >>> barrier()
    """
    groups.world().barrier()


@contextmanager
def zero_first(is_main: bool) -> Iterator[None]:
    """Runs the body on rank 0 first, then on the others. An exception of rank 0 reaches them as an error.

    >>> with zero_first(is_main_process()):
    ...     dataset = load_or_prepare()
    """
    world = groups.world()
    if not is_main:
        world.barrier()
    try:
        yield
    except BaseException as error:
        if is_main:
            world.abort(f"rank {world.rank} failed in zero_first: {_core.reason_text(error)}")
        raise
    if is_main:
        world.barrier()


@contextmanager
def zero_only() -> Iterator[bool]:
    """Yields whether this is rank 0, which alone should do the work. Does not synchronize the ranks.

    >>> with zero_only() as is_first:
    ...     if is_first:
    ...         save(model)
    """
    yield is_main_process()


def gather_scalar_from_all_ranks(fn: Callable[[], Any], world_size: int = 1) -> list[Any] | None:
    """Returns the results of `fn` of all ranks on rank 0, and None elsewhere. `world_size` is not needed.

    >>> losses = gather_scalar_from_all_ranks(lambda: loss, get_world_size())
    """
    return gather_from_all_ranks(fn, world_size)


def gather_from_all_ranks(fn: Callable[[], Any], world_size: int = 1) -> list[Any] | None:
    """Returns the results of `fn` of all ranks on rank 0, and None elsewhere. `world_size` is not needed.

    >>> lengths = gather_from_all_ranks(lambda: len(dataset))
    """
    world = groups.world()
    values = crossrank.gather_from_all_ranks(world, fn)
    return values if world.rank == 0 else None


def broadcast_dict(vals: dict[str, Any]) -> dict[str, Any]:
    """Returns rank 0's dictionary on all ranks.

    >>> settings = broadcast_dict({"steps": 100})
    """
    return groups.world().broadcast_object(vals, root=0)


def compute_and_broadcast(fn: Callable[[], Any]) -> Any:
    """Runs `fn` on rank 0 and returns its result on all ranks.

    >>> steps = compute_and_broadcast(count_steps)
    """
    return crossrank.compute_and_broadcast(groups.world(), fn)


def reduce_and_broadcast(fn1: Callable[[], Any], fn2: Callable[[list[Any]], Any]) -> Any:
    """Runs `fn1` on all ranks, `fn2` on rank 0 with the list of the results, and returns what `fn2` returned on all ranks.

    >>> longest = reduce_and_broadcast(lambda: len(dataset), max)
    """
    return crossrank.reduce_and_broadcast(groups.world(), fn1, fn2)
