"""Groups of ranks and their collective operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

from . import _core
from ._types import ReduceOp, ReduceOrder, TensorLike, Timeout, seconds
from .errors import UsageError


class Request:
    """A non-blocking call in progress. It holds the tensors of the call. Keep it until `wait()` returns.

    >>> request = world.iall_reduce(gradient)
    >>> request.wait()
    """

    __slots__ = ("_native", "_tensors")

    def __init__(self, native: _core.Request, *tensors: TensorLike) -> None:
        self._native = native
        self._tensors = tensors

    def test(self) -> bool:
        """Advances the call and returns whether it has finished. Never blocks.

        >>> done = request.test()
        """
        return self._native.test()

    def wait(self, timeout: Timeout | None = None) -> bool:
        """Blocks until the call has finished. With a timeout, returns False if it is still running then.

        Repeated waits for one call count together: after the group's timeout without progress they raise `TimeoutError`.

        >>> request.wait(timeout=0.5)
        """
        limit = seconds(timeout)
        if limit is not None:
            return self._native.wait_for(limit)
        self._native.wait()
        return True

    def set_timeout(self, timeout: Timeout) -> None:
        """Replaces the group's timeout for this call.

        >>> request.set_timeout(30)
        """
        self._native.set_timeout(seconds(timeout))

    def cancel(self) -> None:
        """Cancels the call. Cancelling a collective kills the group. The request then counts as finished.

        >>> request.cancel()
        """
        self._native.cancel()

    @property
    def source(self) -> int:
        """The rank whose message a finished `irecv_any` has received; -1 before that and for other calls."""
        return self._native.source()


class Collective:
    """A group of ranks. All ranks make the same calls in the same order, from one thread at a time.

    Tensors are torch, numpy, DLPack or crossrank tensors on the CPU or a GPU. Calls that fill a tensor write into the
    caller's memory, which must be contiguous. Ctrl-C ends a wait and aborts the group.

    >>> with crossrank.connect() as world:
    ...     world.all_reduce(gradient, op="avg")
    """

    __slots__ = ("_native",)

    def __init__(self, native: _core.Collective) -> None:
        self._native = native

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._native.abort(error)

    def __repr__(self) -> str:
        if not self.connected:
            return "crossrank.Collective(not connected)"
        try:
            return f"crossrank.Collective({self.name!r}, rank {self.rank} of {self.world_size}, {self.backend})"
        except UsageError:
            return "crossrank.Collective(closed)"

    @property
    def connected(self) -> bool:
        """Whether the handle refers to a group."""
        return self._native.connected()

    @property
    def rank(self) -> int:
        """This rank's number in the group, from 0."""
        return self._native.rank()

    @property
    def world_size(self) -> int:
        """The number of ranks in the group."""
        return self._native.world_size()

    @property
    def global_rank(self) -> int:
        """This rank's number in the job."""
        return self._native.global_rank()

    @property
    def ranks(self) -> list[int]:
        """The job ranks of the members, in group order."""
        return self._native.ranks()

    @property
    def local_rank(self) -> int:
        """This rank's place among the job's ranks on its node."""
        return self._native.local_rank()

    @property
    def local_world_size(self) -> int:
        """The number of the job's ranks on this node."""
        return self._native.local_world_size()

    @property
    def local_rank_in_group(self) -> int:
        """This rank's place among the group's ranks on its node."""
        return self._native.local_rank_in_group()

    @property
    def local_size_in_group(self) -> int:
        """The number of the group's ranks on this node."""
        return self._native.local_size_in_group()

    @property
    def is_master(self) -> bool:
        """Whether this is the first rank of the group."""
        return self._native.is_master()

    @property
    def is_local_master(self) -> bool:
        """Whether this is the first rank of the group on its node."""
        return self._native.is_local_master()

    @property
    def backend(self) -> str:
        """The backend's name: "fake", "shm", "mpi" or "composite"."""
        return self._native.backend()

    @property
    def device_backend(self) -> str:
        """What carries collectives on GPU tensors: "nccl", another device transport, or "staged" for copies in host memory.

        It is "none" before the first such collective.
        """
        return self._native.device_backend()

    @property
    def name(self) -> str:
        """The group's name, which errors and `crossrank inspect` show."""
        return self._native.name()

    def barrier(self) -> None:
        """Blocks until all ranks have called `barrier`.

        >>> world.barrier()
        """
        self._native.barrier()

    def abort(self, why: str) -> None:
        """Kills the group: every rank's calls raise `PeerLostError` with `why`. Local.

        >>> world.abort("the input is corrupt")
        """
        self._native.abort(why)

    def failed_ranks(self) -> tuple[int, ...]:
        """Returns the ranks that have died or left, as far as this rank knows. Never blocks.

        For a program that waits for something else than a call of the group.

        >>> if world.failed_ranks(): stop_waiting()
        """
        return tuple(self._native.failed_ranks())

    def keep_alive(self) -> None:
        """Tells the waiting ranks that this rank is alive and makes progress. Local.

        >>> world.keep_alive()
        """
        self._native.keep_alive()

    def close(self) -> None:
        """Runs a last barrier with the group and leaves it.

        >>> world.close()
        """
        if self.connected:
            self._native.close()

    def split(self, groups: Sequence[Sequence[int]], *, name: str = "") -> Collective:
        """Makes the listed groups and returns the one that holds this rank.

        >>> half = world.split([[0, 1], [2, 3]])
        """
        return Collective(self._native.split(groups, name))

    def split_by(self, color: int, *, key: int = 0) -> Collective:
        """Makes one group of all ranks with the same color, ordered by key. A negative color gives no group.

        >>> same_parity = world.split_by(world.rank % 2)
        """
        return Collective(self._native.split_by(color, key))

    def all_reduce(self, tensor: TensorLike, *, op: ReduceOp = "sum", order: ReduceOrder = "any") -> None:
        """Replaces the tensor on every rank by the combination of all ranks' tensors.

        `order` of this and the other reductions matters only for tensors on a GPU: "rank" asks for the same bits as on the
        CPU, where the order is always that of the ranks.

        >>> world.all_reduce(gradient, op="avg")
        """
        self._native.all_reduce(tensor, op, order)

    def iall_reduce(self, tensor: TensorLike, *, op: ReduceOp = "sum", order: ReduceOrder = "any") -> Request:
        """Starts `all_reduce` and returns at once. A list of tensors of one dtype is reduced in one fused call.

        >>> request = world.iall_reduce(gradient, op="avg")
        >>> request = world.iall_reduce([weight.grad, bias.grad])
        """
        if isinstance(tensor, list):
            return Request(self._native.iall_reduce_fused(tensor, op, order), *tensor)
        return Request(self._native.iall_reduce(tensor, op, order), tensor)

    def reduce(self, tensor: TensorLike, *, op: ReduceOp = "sum", root: int = 0, order: ReduceOrder = "any") -> None:
        """Replaces the root's tensor by the combination of all ranks' tensors.

        >>> world.reduce(loss, root=0)
        """
        self._native.reduce(tensor, op, root, order)

    def ireduce(self, tensor: TensorLike, *, op: ReduceOp = "sum", root: int = 0, order: ReduceOrder = "any") -> Request:
        """Starts `reduce` and returns at once.

        >>> request = world.ireduce(loss, root=0)
        """
        return Request(self._native.ireduce(tensor, op, root, order), tensor)

    def broadcast(self, tensor: TensorLike, *, root: int = 0) -> None:
        """Copies the root's bytes into the tensor on every other rank.

        >>> world.broadcast(weight, root=0)
        """
        self._native.broadcast(tensor, root)

    def ibroadcast(self, tensor: TensorLike, *, root: int = 0) -> Request:
        """Starts `broadcast` and returns at once.

        >>> request = world.ibroadcast(weight, root=0)
        """
        return Request(self._native.ibroadcast(tensor, root), tensor)

    def reduce_scatter(self, out: TensorLike, tensor: TensorLike, *, op: ReduceOp = "sum", order: ReduceOrder = "any") -> None:
        """Combines the tensors of all ranks and gives rank r the r-th of equal parts in `out`.

        >>> world.reduce_scatter(part, gradient)
        """
        self._native.reduce_scatter(out, tensor, op, order)

    def ireduce_scatter(
        self, out: TensorLike, tensor: TensorLike, *, op: ReduceOp = "sum", order: ReduceOrder = "any"
    ) -> Request:
        """Starts `reduce_scatter` and returns at once. Two lists make one fused call: `out[i]` gets a part of `tensor[i]`.

        >>> request = world.ireduce_scatter(part, gradient)
        >>> request = world.ireduce_scatter([part, other_part], [gradient, other_gradient])
        """
        if isinstance(out, list):
            return Request(self._native.ireduce_scatter_fused(out, tensor, op, order), *out, *tensor)
        return Request(self._native.ireduce_scatter(out, tensor, op, order), out, tensor)

    def reduce_scatterv(
        self,
        out: TensorLike,
        tensor: TensorLike,
        *,
        rows: Sequence[int],
        op: ReduceOp = "sum",
        order: ReduceOrder = "any",
    ) -> None:
        """Combines the tensors of all ranks and gives rank r the next `rows[r]` rows in `out`.

        >>> world.reduce_scatterv(part, gradient, rows=[3, 5])
        """
        self._native.reduce_scatterv(out, tensor, list(rows), op, order)

    def ireduce_scatterv(
        self,
        out: TensorLike,
        tensor: TensorLike,
        *,
        rows: Sequence[int],
        op: ReduceOp = "sum",
        order: ReduceOrder = "any",
    ) -> Request:
        """Starts `reduce_scatterv` and returns at once.

        >>> request = world.ireduce_scatterv(part, gradient, rows=[3, 5])
        """
        return Request(self._native.ireduce_scatterv(out, tensor, list(rows), op, order), out, tensor)

    def all_gather(self, out: TensorLike, tensor: TensorLike) -> None:
        """Joins the tensors of all ranks in `out`, which has the shape [world_size, *tensor.shape].

        >>> world.all_gather(all_parts, part)
        """
        self._native.all_gather(out, tensor)

    def iall_gather(self, out: TensorLike, tensor: TensorLike) -> Request:
        """Starts `all_gather` and returns at once. Two lists make one fused call: `out[i]` gets the i-th tensors of all ranks.

        >>> request = world.iall_gather(all_parts, part)
        >>> request = world.iall_gather([all_weights, all_biases], [weight, bias])
        """
        if isinstance(out, list):
            return Request(self._native.iall_gather_fused(out, tensor), *out, *tensor)
        return Request(self._native.iall_gather(out, tensor), out, tensor)

    def all_gatherv(self, out: TensorLike, tensor: TensorLike, *, rows: Sequence[int]) -> None:
        """Joins tensors of `rows[r]` rows along their first dimension, on every rank.

        >>> world.all_gatherv(all_rows, mine, rows=[3, 5])
        """
        self._native.all_gatherv(out, tensor, list(rows), 0)

    def iall_gatherv(self, out: TensorLike, tensor: TensorLike, *, rows: Sequence[int]) -> Request:
        """Starts `all_gatherv` and returns at once.

        >>> request = world.iall_gatherv(all_rows, mine, rows=[3, 5])
        """
        return Request(self._native.iall_gatherv(out, tensor, list(rows), 0), out, tensor)

    def gather(self, out: TensorLike | None, tensor: TensorLike, *, root: int = 0) -> None:
        """Joins the tensors of all ranks in the root's `out`; None on the other ranks.

        >>> world.gather(all_parts if world.rank == 0 else None, part)
        """
        self._native.gather(out, tensor, root)

    def igather(self, out: TensorLike | None, tensor: TensorLike, *, root: int = 0) -> Request:
        """Starts `gather` and returns at once.

        >>> request = world.igather(all_parts if world.rank == 0 else None, part)
        """
        return Request(self._native.igather(out, tensor, root), out, tensor)

    def gatherv(self, out: TensorLike | None, tensor: TensorLike, *, rows: Sequence[int], root: int = 0) -> None:
        """Joins tensors of `rows[r]` rows in the root's `out`.

        >>> world.gatherv(all_rows if world.rank == 0 else None, mine, rows=[3, 5])
        """
        self._native.gatherv(out, tensor, list(rows), root)

    def igatherv(self, out: TensorLike | None, tensor: TensorLike, *, rows: Sequence[int], root: int = 0) -> Request:
        """Starts `gatherv` and returns at once.

        >>> request = world.igatherv(all_rows if world.rank == 0 else None, mine, rows=[3, 5])
        """
        return Request(self._native.igatherv(out, tensor, list(rows), root), out, tensor)

    def scatter(self, out: TensorLike, tensor: TensorLike | None, *, root: int = 0) -> None:
        """Gives rank r the r-th of equal parts of the root's tensor in `out`.

        >>> world.scatter(part, whole if world.rank == 0 else None)
        """
        self._native.scatter(out, tensor, root)

    def iscatter(self, out: TensorLike, tensor: TensorLike | None, *, root: int = 0) -> Request:
        """Starts `scatter` and returns at once.

        >>> request = world.iscatter(part, whole if world.rank == 0 else None)
        """
        return Request(self._native.iscatter(out, tensor, root), out, tensor)

    def scatterv(self, out: TensorLike, tensor: TensorLike | None, *, rows: Sequence[int], root: int = 0) -> None:
        """Gives rank r the next `rows[r]` rows of the root's tensor in `out`.

        >>> world.scatterv(mine, whole if world.rank == 0 else None, rows=[3, 5])
        """
        self._native.scatterv(out, tensor, list(rows), root)

    def iscatterv(self, out: TensorLike, tensor: TensorLike | None, *, rows: Sequence[int], root: int = 0) -> Request:
        """Starts `scatterv` and returns at once.

        >>> request = world.iscatterv(mine, whole if world.rank == 0 else None, rows=[3, 5])
        """
        return Request(self._native.iscatterv(out, tensor, list(rows), root), out, tensor)

    def all_to_all(self, out: TensorLike, tensor: TensorLike) -> None:
        """Sends the r-th of equal parts of the tensor to rank r.

        >>> world.all_to_all(received, sent)
        """
        self._native.all_to_all(out, tensor)

    def iall_to_all(self, out: TensorLike, tensor: TensorLike) -> Request:
        """Starts `all_to_all` and returns at once.

        >>> request = world.iall_to_all(received, sent)
        """
        return Request(self._native.iall_to_all(out, tensor), out, tensor)

    def all_to_allv(self, out: TensorLike, tensor: TensorLike, *, send: Sequence[int], receive: Sequence[int]) -> None:
        """Sends the next `send[r]` rows to rank r and receives `receive[r]` rows from it.

        >>> world.all_to_allv(received, sent, send=[1, 2], receive=[1, 1])
        """
        self._native.all_to_allv(out, tensor, list(send), list(receive))

    def iall_to_allv(self, out: TensorLike, tensor: TensorLike, *, send: Sequence[int], receive: Sequence[int]) -> Request:
        """Starts `all_to_allv` and returns at once.

        >>> request = world.iall_to_allv(received, sent, send=[1, 2], receive=[1, 1])
        """
        return Request(self._native.iall_to_allv(out, tensor, list(send), list(receive)), out, tensor)

    def send(self, tensor: TensorLike, *, dst: int, tag: int = 0) -> None:
        """Sends the tensor to a rank.

        >>> world.send(activations, dst=1)
        """
        self._native.send(tensor, dst, tag)

    def isend(self, tensor: TensorLike, *, dst: int, tag: int = 0) -> Request:
        """Starts `send` and returns at once.

        >>> request = world.isend(activations, dst=1)
        """
        return Request(self._native.isend(tensor, dst, tag), tensor)

    def recv(self, tensor: TensorLike, *, src: int, tag: int = 0) -> None:
        """Fills the tensor with the next message from a rank.

        >>> world.recv(activations, src=0)
        """
        self._native.recv(tensor, src, tag)

    def irecv(self, tensor: TensorLike, *, src: int, tag: int = 0) -> Request:
        """Starts `recv` and returns at once.

        >>> request = world.irecv(activations, src=0)
        """
        return Request(self._native.irecv(tensor, src, tag), tensor)

    def recv_any(self, tensor: TensorLike, *, tag: int = 0) -> int:
        """Fills the tensor with the next message from any other rank, and returns the sender's rank.

        Ranks whose messages wait take turns. Messages of one rank stay in order.

        >>> worker = world.recv_any(result)
        """
        return self._native.recv_any(tensor, tag)

    def irecv_any(self, tensor: TensorLike, *, tag: int = 0) -> Request:
        """Starts `recv_any` and returns at once. `Request.source` names the sender afterwards.

        >>> request = world.irecv_any(result)
        """
        return Request(self._native.irecv_any(tensor, tag), tensor)

    def ibarrier(self) -> Request:
        """Starts a `barrier` and returns at once.

        >>> request = world.ibarrier()
        """
        return Request(self._native.ibarrier())

    def sendrecv(self, out: TensorLike, tensor: TensorLike, *, dst: int, src: int, tag: int = 0) -> None:
        """Sends `tensor` to one rank and receives into `out` from another at the same time.

        >>> world.sendrecv(theirs, mine, dst=right, src=left)
        """
        self._native.sendrecv(out, tensor, dst, src, tag)

    def broadcast_object(self, value: Any = None, *, root: int = 0, pickle: bool = False) -> Any:
        """Returns the root's value on every rank.

        Values are None, bool, int, float, str, bytes, lists and dicts. With `pickle=True` on all ranks, any object:
        unpickling runs code of the sender, so use it only between ranks that you trust.

        >>> config = world.broadcast_object(config if world.rank == 0 else None)
        """
        got = _core.broadcast_object(self._native, value, root, pickle)
        return _load(got) if pickle else got

    def all_gather_objects(self, value: Any, *, pickle: bool = False) -> list[Any]:
        """Returns the values of all ranks, in rank order, on every rank. Values and `pickle` as for `broadcast_object`.

        >>> hosts = world.all_gather_objects(socket.gethostname())
        """
        got = _core.all_gather_objects(self._native, value, pickle)
        return [_load(each) for each in got] if pickle else got

    def gather_objects(self, value: Any, *, root: int = 0, pickle: bool = False) -> list[Any]:
        """Returns the values of all ranks on the root, an empty list elsewhere. Values and `pickle` as for `broadcast_object`.

        >>> losses = world.gather_objects(loss)
        """
        got = _core.gather_objects(self._native, value, root, pickle)
        return [_load(each) for each in got] if pickle else got

    def scatter_objects(self, values: Sequence[Any] | None = None, *, root: int = 0, pickle: bool = False) -> Any:
        """Returns entry r of the root's list on rank r. Values and `pickle` as for `broadcast_object`.

        >>> part = world.scatter_objects(parts if world.rank == 0 else None)
        """
        got = _core.scatter_objects(self._native, values, root, pickle)
        return _load(got) if pickle else got

    def send_object(self, value: Any, *, dst: int, pickle: bool = False) -> None:
        """Sends one value to a rank. Values and `pickle` as for `broadcast_object`.

        >>> world.send_object({"step": 7}, dst=1)
        """
        _core.send_object(self._native, value, dst, pickle)

    def recv_object(self, *, src: int, pickle: bool = False) -> Any:
        """Returns the next value from a rank. Values and `pickle` as for `broadcast_object`.

        >>> message = world.recv_object(src=0)
        """
        value = _core.recv_object(self._native, src, pickle)
        return _load(value) if pickle else value


def _dump(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _load(value: Any) -> Any:
    import pickle

    return pickle.loads(value)


def connect(
    *,
    communicator: Any = None,
    backend: str = "",
    timeout: Timeout | None = None,
    connect_timeout: Timeout | None = None,
    user_limit: Timeout | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    job_id: str = "",
    rank_kind: Literal["process", "thread"] = "process",
    arena_cap: int | None = None,
    check: Literal["off", "local", "collective"] | None = None,
    linger: Timeout | None = None,
    progress: Literal["caller", "thread"] = "caller",
) -> Collective:
    """Joins the job that the launcher announced, and returns the group of all its ranks.

    With a `communicator` of mpi4py, returns the group of its ranks instead: collective over it, with its program's MPI. The
    program closes the group before it finalizes MPI.

    While a group of the job is open in this process, a further call returns it; the options of the first call stay.

    Without a launcher the job consists of this process. Call it after `fork`, never before. A start that has failed is
    kept for `linger`, so that ranks that come later learn why; without it until `connect_timeout`.

    With `progress="thread"` a thread of the library advances non-blocking calls while Python computes. With "caller" they
    advance only while their thread waits, or calls `test` or `wait`.

    >>> world = crossrank.connect(timeout=60)
    """
    return Collective(
        _core.connect(
            None if communicator is None else _fortran_handle(communicator),
            backend, seconds(timeout), seconds(connect_timeout), seconds(user_limit), rank, world_size, job_id,
            rank_kind, arena_cap, check, seconds(linger), progress,
        )
    )  # fmt: skip


def _fortran_handle(communicator: Any) -> int:
    """Returns the number by which Fortran knows a communicator of mpi4py, whose MPI must be the plugin's, Open MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(communicator, mpi.Comm):
        raise UsageError(f"connect: communicator is a {type(communicator).__name__}, not a communicator of mpi4py")
    vendor, version = mpi.get_vendor()
    if vendor != "Open MPI":
        raise UsageError(f"connect: mpi4py runs on {vendor} {version}, and crossrank was built for Open MPI")
    return communicator.py2f()


def statistics() -> dict[str, int]:
    """Returns counters of this process: bytes copied, sleeps, wake-ups.

    >>> crossrank.statistics()["bytes_copied"]
    """
    return _core.statistics()


def native_of(group: Collective) -> _core.Collective:
    """Returns the core's group. `TypeError` for anything else, such as a process group of torch."""
    if not isinstance(group, Collective):
        raise TypeError(f"expected a crossrank.Collective, such as that of crossrank.connect(), got {type(group).__name__}")
    return group._native


def native_or_none(group: Collective | None) -> _core.Collective | None:
    """Returns the core's group; None for no group."""
    return None if group is None else native_of(group)
