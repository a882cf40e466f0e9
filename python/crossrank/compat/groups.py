"""Groups of crossrank for ranks that torch knows."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import crossrank

__all__ = ["connect", "group_of", "next_job", "rank", "subgroup", "until_death", "world"]

# A rank may load a model or tokenize a corpus before it comes. Torch's process groups wait as long by default.
_DEFAULT_TIMEOUT = 30 * 60.0

_groups: dict[tuple[int, ...], crossrank.Collective] = {}
# Torch's default group to which the entries belong.
_default: Any = None


def _torch_is_initialized() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def connect(**options: Any) -> crossrank.Collective:
    """Joins a group that waits as long as torch's groups do, or as long as `CROSSRANK_TIMEOUT` says.

    A rank that dies ends the waits of the others at once, whatever the limit is.
    """
    if not os.environ.get("CROSSRANK_TIMEOUT"):
        options.setdefault("timeout", _DEFAULT_TIMEOUT)
        if not os.environ.get("CROSSRANK_CONNECT_TIMEOUT"):
            options.setdefault("connect_timeout", _DEFAULT_TIMEOUT)
    return crossrank.connect(**options)


def rank() -> int:
    """Returns this process's rank: torch's where it is initialised, else that of the launcher."""
    if _torch_is_initialized():
        import torch.distributed as dist

        return dist.get_rank()
    return world().rank


def world() -> crossrank.Collective:
    """Returns a group of all ranks."""
    if _torch_is_initialized():
        import torch.distributed as dist

        return subgroup(range(dist.get_world_size()))
    if () not in _groups:
        _groups[()] = connect()
    return _groups[()]


def group_of(process_group: object | None) -> crossrank.Collective:
    """Returns a group of the same ranks as a process group of torch; of all ranks for None."""
    if process_group is None:
        return world()
    import torch.distributed as dist

    return subgroup(dist.get_process_group_ranks(process_group))  # type: ignore[arg-type]


def next_job(store: Any, name: str, *, rank: int, first: int, timeout: timedelta) -> str:
    """Returns the id of the next job of the ranks that call this with `name`, which rank `first` chooses.

    A store may outlive a group, so the keys have the number of the join. Each rank counts its own.
    """
    joins = f"{name}/joins/{rank}"
    key = f"{name}/job/{store.add(joins, 1)}"
    if rank == first:
        store.set(key, secrets.token_hex(16))
    try:
        store.wait([key], timeout)
    except BaseException:
        store.add(joins, -1)  # another try is the same join
        raise
    return store.get(key).decode()


def subgroup(ranks: Sequence[int]) -> crossrank.Collective:
    """Returns a group of some of torch's ranks, in that order. Only these ranks call it. They connect once."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    global _default
    if not _torch_is_initialized():
        raise crossrank.UsageError(f"the ranks {list(ranks)} need torch.distributed: call init_process_group first")
    members, own = tuple(ranks), dist.get_rank()
    if own not in members:
        raise crossrank.UsageError(f"rank {own} calls an operation of the ranks {list(members)}, which it is not one of")
    if _default is None or _default() is not dist.group.WORLD:
        _groups.clear()
        _default = weakref.ref(dist.group.WORLD)
    if members not in _groups:
        store: Any = PrefixStore("crossrank/compat", dist.distributed_c10d._get_default_store())
        name = ",".join(map(str, members))
        job = next_job(store, name, rank=own, first=members[0], timeout=store.timeout)
        _groups[members] = connect(rank=members.index(own), world_size=len(members), job_id=job)
    return _groups[members]


@contextmanager
def until_death(group: crossrank.Collective, told: Sequence[BaseException] = ()) -> Iterator[crossrank.Collective]:
    """Yields a group of this module. If an exception of the block ends the group, its ranks connect anew at the next call.

    The exceptions in `told` do not end it: the other ranks have been told of them. Nor does an exception with the attribute
    `group_usable`, such as a KeyboardInterrupt that came too late to stop a job.

    A cancellation ends it: the rank that was interrupted raises its own exception, without the attribute, and all ranks must
    decide alike.
    """
    try:
        yield group
    except BaseException as error:
        if any(error is one for one in told):
            raise
        cancelled = isinstance(error, crossrank.CancelledError)
        if cancelled or not getattr(error, "group_usable", False):
            for members in [members for members, other in _groups.items() if other is group]:
                del _groups[members]
        raise
