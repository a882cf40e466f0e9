"""Groups of crossrank for ranks that torch knows."""

from __future__ import annotations

import os
import secrets
import socket
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import crossrank

__all__ = [
    "arrival_limit",
    "connect",
    "forget_processes",
    "group_of",
    "limits",
    "next_job",
    "rank",
    "subgroup",
    "torch_is_initialized",
    "until_death",
    "world",
]

# A rank may load a model or tokenize a corpus before it comes. Torch's process groups wait as long by default.
_DEFAULT_TIMEOUT = 30 * 60.0

_groups: dict[tuple[int, ...], crossrank.Collective] = {}
# Torch's default group to which the entries belong.
_default: Any = None
# The processes of torch's ranks that have made a group with this one, as far as their numbers have a meaning here.
_pids: dict[int, int] = {}


def torch_is_initialized() -> bool:
    """Returns whether the program has initialized `torch.distributed`."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def connect(**options: Any) -> crossrank.Collective:
    """Joins a group that waits as long as torch's groups do, or as long as the environment says.

    A rank that dies ends the waits of the others at once, whatever the limit is.
    """
    return crossrank.connect(**{**limits(_DEFAULT_TIMEOUT), **options})


def limits(seconds: float) -> dict[str, Any]:
    """Returns the options of `connect` for a group with that timeout, unless the environment sets another one."""
    if os.environ.get("CROSSRANK_TIMEOUT"):
        return {}
    return {"timeout": seconds, "connect_timeout": seconds}


def arrival_limit(seconds: float) -> timedelta:
    """Returns how long the ranks of such a group wait for each other."""
    return timedelta(seconds=crossrank._core.connect_timeout(limits(seconds).get("connect_timeout")))


def _dead(ranks: Sequence[int]) -> list[int]:
    """Returns which of these ranks of torch have ended, of those that have made a group with this one before."""
    return [rank for rank in ranks if rank in _pids and _has_ended(_pids[rank])]


def forget_processes() -> None:
    """Forgets which processes are torch's ranks, because torch has been initialized anew."""
    _pids.clear()


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
    except OSError:  # it may be alive
        return False


def rank() -> int:
    """Returns this process's rank: torch's where it is initialized, else that of the launcher."""
    if torch_is_initialized():
        import torch.distributed as dist

        return dist.get_rank()
    return world().rank


def world() -> crossrank.Collective:
    """Returns a group of all ranks."""
    if torch_is_initialized():
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


def next_job(
    store: Any, name: str, *, rank: int, ranks: Sequence[int], timeout: timedelta, global_ranks: Sequence[int] | None = None
) -> str:
    """Returns the id of the next job of `ranks`, which all call this with `name`. The first of them chooses it.

    A store may outlive a group, so the keys have the number of the join. Each rank counts its own. `UnavailableError` on all
    ranks if they are on several hosts, `PeerLostError` with those that have ended, and `TimeoutError` with those that have not
    come. `global_ranks` are their numbers in torch's default group, where these differ.
    """
    if rank not in ranks:
        raise crossrank.UsageError(f"there is no rank {rank} in a group of {len(ranks)} ranks: expected one of {list(ranks)}")
    joins = f"{name}/joins/{rank}"
    key = f"{name}/job/{store.add(joins, 1)}"
    if rank == ranks[0]:
        store.set(key, secrets.token_hex(16))
    arrival_keys = {member: f"{key}/arrival/{member}" for member in ranks}
    own = _arrival(ranks)
    store.set(arrival_keys[rank], own)
    numbers = dict(zip(ranks, global_ranks or ranks, strict=True))
    try:
        arrivals = _wait_for_arrivals(store, arrival_keys, own, timeout, numbers)
    except BaseException:
        with suppress(RuntimeError):  # the store may be gone
            store.delete_key(arrival_keys[rank])
        store.add(joins, -1)  # another try is the same join
        raise
    if elsewhere := [member for member, arrival in arrivals.items() if arrival.split()[0] != _host()]:
        raise crossrank.UnavailableError(
            f"the ranks {elsewhere} are on other hosts than rank {rank}. These groups use shared memory: all ranks "
            "of torch that call an operation of crossrank must be on one host"
        )
    return store.get(key).decode()


def _arrival(ranks: Sequence[int]) -> str:
    """Returns what a rank tells the others: its host, the size of the group that it joins, and its process."""
    return f"{_host()} {len(ranks)} {_pid_namespace()} {os.getpid()}"


def _place(arrival: str) -> list[str]:
    """Returns the part of what a rank tells in which all ranks must agree: host and size."""
    return arrival.split()[:2]


def _pid_namespace() -> str:
    """Returns the same text in all processes that have the same number for a process."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return secrets.token_hex(8)


def _note_processes(arrivals: dict[int, str], own: str, global_ranks: dict[int, int]) -> None:
    """Notes the processes of the ranks that share a PID namespace with this one, which tells `own`."""
    for member, arrival in arrivals.items():
        namespace, pid = arrival.split()[2:]
        if namespace == own.split()[2]:
            _pids[global_ranks[member]] = int(pid)


def _host() -> str:
    """Returns the same text in all processes of one host, in containers too, and another one elsewhere."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _wait_for_arrivals(
    store: Any, keys: dict[int, str], own: str, timeout: timedelta, global_ranks: dict[int, int]
) -> dict[int, str]:
    """Waits until all ranks have come and are alive, or one that differs has come. Returns what they tell.

    A wait of the store could not be interrupted by Ctrl-C.
    """
    end = monotonic() + timeout.total_seconds()
    pause = 0.0005
    arrivals: dict[int, str] = {}
    while True:
        for member in [member for member in keys if member not in arrivals and store.check([keys[member]])]:
            arrivals[member] = store.get(keys[member]).decode()
        _note_processes(arrivals, own, global_ranks)
        if any(_place(arrival) != _place(own) for arrival in arrivals.values()):
            return arrivals
        if dead := _dead([global_ranks[member] for member in keys]):
            who = f"rank {dead[0]} has" if len(dead) == 1 else f"the ranks {dead} have"
            lost = crossrank.PeerLostError(f"{who} ended before the group was made")
            lost.failed_ranks = tuple(member for member in keys if global_ranks[member] in dead)
            raise lost
        if len(arrivals) == len(keys):
            if store.check(list(keys.values())):
                return arrivals
            # A rank that was interrupted has taken its arrival back.
            arrivals = {member: arrival for member, arrival in arrivals.items() if store.check([keys[member]])}
        late = [member for member in keys if member not in arrivals]
        left = end - monotonic()
        if left <= 0:
            error = crossrank.TimeoutError(f"the ranks {late} did not come within {timeout.total_seconds():g} s")
            error.failed_ranks = tuple(late)
            raise error
        sleep(min(pause, left))
        pause = min(2 * pause, 0.05)


def subgroup(ranks: Sequence[int]) -> crossrank.Collective:
    """Returns a group of some of torch's ranks, in that order. Only these ranks call it. They connect once."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    global _default
    members, default = tuple(ranks), dist.group.WORLD
    if members in _groups and default is not None and _default is not None and _default() is default:
        return _groups[members]
    if not torch_is_initialized():
        raise crossrank.UsageError(f"the ranks {list(ranks)} need torch.distributed: call init_process_group first")
    own = dist.get_rank()
    if own not in members:
        raise crossrank.UsageError(f"rank {own} calls an operation of the ranks {list(members)}, which it is not one of")
    if len(set(members)) != len(members):
        raise crossrank.UsageError(f"a rank is listed twice: expected distinct ranks, got {list(members)}")
    size = dist.get_world_size()
    if absent := [member for member in members if not 0 <= member < size]:
        raise crossrank.UsageError(f"there are no ranks {absent}: expected 0 to {size - 1}, got {list(members)}")
    if _default is None or _default() is not default:
        _groups.clear()
        if "crossrank" not in str(dist.get_backend_config()):  # else its start has noted the processes
            forget_processes()
        _default = weakref.ref(default)
    if members not in _groups:
        store: Any = PrefixStore("crossrank/compat", dist.distributed_c10d._get_default_store())
        name = ",".join(map(str, members))
        job = next_job(store, name, rank=own, ranks=members, timeout=arrival_limit(store.timeout.total_seconds()))
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
