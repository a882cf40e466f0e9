"""Groups of crossrank for ranks that torch knows."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import crossrank

__all__ = ["group_of", "rank", "subgroup", "world"]

_groups: dict[tuple[int, tuple[int, ...]], crossrank.Collective] = {}


def _torch_is_initialized() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


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
    if (0, ()) not in _groups:
        _groups[0, ()] = crossrank.connect()
    return _groups[0, ()]


def group_of(process_group: object | None) -> crossrank.Collective:
    """Returns a group of the same ranks as a process group of torch; of all ranks for None."""
    if process_group is None:
        return world()
    import torch.distributed as dist

    return subgroup(dist.get_process_group_ranks(process_group))  # type: ignore[arg-type]


def subgroup(ranks: Sequence[int]) -> crossrank.Collective:
    """Returns a group of some of torch's ranks, in that order. Only these ranks call it. They connect once."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    if not _torch_is_initialized():
        raise crossrank.UsageError(f"the ranks {list(ranks)} need torch.distributed: call init_process_group first")
    members, own = tuple(ranks), dist.get_rank()
    if own not in members:
        raise crossrank.UsageError(f"rank {own} calls an operation of the ranks {list(members)}, which it is not one of")
    key = (id(dist.group.WORLD), members)
    if key not in _groups:
        store = PrefixStore("crossrank/compat", dist.distributed_c10d._get_default_store())
        name = ",".join(map(str, members))
        if own == members[0]:
            store.set(name, secrets.token_hex(16))
        _groups[key] = crossrank.connect(
            rank=members.index(own), world_size=len(members), job_id=store.get(name).decode()
        )
    return _groups[key]
