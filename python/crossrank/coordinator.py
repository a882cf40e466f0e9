"""A group of ranks for one kind of parallelism, after vLLM's `GroupCoordinator`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from . import _core
from ._types import ReduceOrder, Shape, TensorLike
from .collective import Collective, native_of, native_or_none
from .tensor import Tensor


class Dispatched(NamedTuple):
    """The tokens of all ranks, joined along their first dimension, and the route for `combine`."""

    hidden_states: Tensor
    router_logits: Tensor
    extra_tensors: list[Tensor]
    route: _core.ExpertRoute


class TensorDictSend:
    """A dict that is being sent. Keep it until `wait()` returns or `test()` returns True.

    >>> request = pp.isend_tensor_dict({"hidden": hidden})
    >>> request.wait()
    """

    __slots__ = ("_native",)

    def __init__(self, native: _core.TensorDictSend) -> None:
        self._native = native

    def test(self) -> bool:
        """Returns whether everything has been sent. Never blocks.

        >>> done = request.test()
        """
        return self._native.test()

    def wait(self) -> None:
        """Blocks until everything has been sent.

        >>> request.wait()
        """
        self._native.wait()


class TensorDictReceive:
    """A dict that is being received. Two ranks that send each other large dicts wait for the receive first.

    >>> request = pp.irecv_tensor_dict()
    >>> values = request.wait()
    """

    __slots__ = ("_native",)

    def __init__(self, native: _core.TensorDictReceive) -> None:
        self._native = native

    def test(self) -> bool:
        """Returns whether all messages have arrived. Never blocks.

        >>> done = request.test()
        """
        return self._native.test()

    def wait(self) -> dict[str, Any]:
        """Blocks until all messages have arrived, and returns the dict. Later calls return at once.

        >>> values = request.wait()
        """
        return self._native.wait()


class GroupCoordinator:
    """A group with collectives on tensors and dicts. Results are new tensors.

    A `with` block leaves the group. An exception in the block aborts the group instead: the other ranks get a
    `PeerLostError`.

    >>> tp = crossrank.GroupCoordinator.create(world, [[0, 1], [2, 3]], name="tp")
    >>> full = tp.all_gather(shard, dim=-1)
    """

    __slots__ = ("_native",)

    def __init__(self, native: _core.GroupCoordinator) -> None:
        self._native = native

    @classmethod
    def create(
        cls,
        world: Collective,
        groups: Sequence[Sequence[int]],
        *,
        name: str = "anonymous",
        device_communicator: bool = False,
        broadcaster: bool = False,
        data_parallel: Collective | None = None,
    ) -> Self:
        """Makes the listed groups and returns the one that holds this rank. Collective.

        `data_parallel` is the group whose tokens `dispatch` joins. With `device_communicator`, `recv` receives on the GPU of
        this process, and the communicator between the GPUs is made here, if all ranks have one.

        >>> tp = crossrank.GroupCoordinator.create(world, [[0, 1]])
        """
        dp = native_or_none(data_parallel)
        return cls(_core.create_coordinator(native_of(world), groups, name, device_communicator, broadcaster, dp))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is not None:
            for group in (self._native.cpu_group(), self._native.device_group()):
                group.abort(error)
        self.destroy()

    @property
    def cpu_group(self) -> Collective:
        """The group that objects and metadata use."""
        return Collective(self._native.cpu_group())

    @property
    def device_group(self) -> Collective:
        """The group that tensors use."""
        return Collective(self._native.device_group())

    @property
    def device(self) -> str:
        """The device on which `recv` makes its tensor: the GPU of this process with `device_communicator`, else "cpu"."""
        return self._native.device()

    @property
    def unique_name(self) -> str:
        """A name such as "tp:0"."""
        return self._native.unique_name()

    @property
    def rank_in_group(self) -> int:
        """This rank's number in the group."""
        return self.cpu_group.rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the group."""
        return self.cpu_group.world_size

    @property
    def ranks(self) -> list[int]:
        """The job ranks of the members, in group order."""
        return self._native.ranks()

    def barrier(self) -> None:
        """Blocks until all ranks have called it.

        >>> tp.barrier()
        """
        self._native.barrier()

    def all_reduce(self, tensor: TensorLike, *, order: ReduceOrder = "any") -> Tensor:
        """Returns the sum of all ranks' tensors. `order` of this and the other sums is as in `Collective.all_reduce`.

        >>> total = tp.all_reduce(partial)
        """
        return self._native.all_reduce(tensor, order)

    def all_gather(self, tensor: TensorLike, *, dim: int = -1) -> Tensor:
        """Returns the tensors of all ranks joined along a dimension.

        >>> full = tp.all_gather(shard, dim=0)
        """
        return self._native.all_gather(tensor, dim)

    def all_gatherv(self, tensor: TensorLike, *, sizes: Sequence[int] = ()) -> Tensor:
        """Returns tensors of different lengths joined along their first dimension.

        >>> tokens = tp.all_gatherv(mine)
        """
        return self._native.all_gatherv(tensor, list(sizes))

    def reduce_scatter(self, tensor: TensorLike, *, dim: int = -1, order: ReduceOrder = "any") -> Tensor:
        """Adds the tensors of all ranks and returns the r-th of equal parts on rank r.

        >>> part = tp.reduce_scatter(partial, dim=0)
        """
        return self._native.reduce_scatter(tensor, dim, order)

    def reduce_scatterv(
        self, tensor: TensorLike, *, dim: int = -1, sizes: Sequence[int] = (), order: ReduceOrder = "any"
    ) -> Tensor:
        """Adds the tensors of all ranks and returns `sizes[r]` entries on rank r.

        >>> part = tp.reduce_scatterv(partial, dim=0, sizes=[3, 5])
        """
        return self._native.reduce_scatterv(tensor, dim, list(sizes), order)

    def gather(self, tensor: TensorLike, *, dst: int = 0, dim: int = -1) -> Tensor | None:
        """Returns the tensors of all ranks joined, on rank `dst`; None elsewhere.

        >>> full = tp.gather(shard)
        """
        return self._native.gather(tensor, dst, dim)

    def broadcast(self, tensor: TensorLike, *, src: int = 0) -> TensorLike:
        """Fills the tensor with the source's bytes and returns it. The source only reads its tensor.

        >>> tp.broadcast(weight)
        """
        self._native.broadcast(tensor, src)
        return tensor

    def send(self, tensor: TensorLike, *, dst: int | None = None) -> None:
        """Sends a tensor to a rank; without `dst` to the next one.

        >>> pp.send(activations)
        """
        self._native.send(tensor, dst)

    def recv(self, shape: Shape, dtype: str, *, src: int | None = None) -> Tensor:
        """Returns the next tensor from a rank, on `device`; without `src` from the previous one.

        >>> activations = pp.recv((8, 128), "BF16")
        """
        return self._native.recv(shape, dtype, src)

    def broadcast_object(self, value: Any = None, *, src: int = 0, pickle: bool = False) -> Any:
        """Returns the source's value on every rank.

        >>> config = tp.broadcast_object(config)
        """
        return self.cpu_group.broadcast_object(value, root=src, pickle=pickle)

    def broadcast_tensor_dict(self, values: dict[str, Any] | None = None, *, src: int = 0) -> dict[str, Any]:
        """Returns the source's dict of tensors and JSON values. The source gets its own tensors.

        A tensor on a GPU arrives on the GPU of this process.

        >>> batch = tp.broadcast_tensor_dict(batch)
        """
        return self._native.broadcast_tensor_dict(lambda: values, src)

    def send_tensor_dict(
        self,
        values: dict[str, Any],
        *,
        dst: int | None = None,
        all_gather_group: Collective | None = None,
        all_gather_tensors: Mapping[str, bool] | None = None,
    ) -> None:
        """Sends a dict of tensors and JSON values to a rank; without `dst` to the next one.

        With `all_gather_group` each of its ranks sends one part of a tensor that all of them hold. `all_gather_tensors` says by
        key whether that holds, nested keys joined by dots: a tensor that differs between these ranks is False. Without an
        entry, every tensor that can be divided is sent in parts.

        >>> pp.send_tensor_dict({"hidden": hidden, "step": 7})
        >>> pp.send_tensor_dict(values, all_gather_group=tp.cpu_group, all_gather_tensors={"residual": False})
        """
        self._native.send_tensor_dict(lambda: values, dst, native_or_none(all_gather_group), dict(all_gather_tensors or {}))

    def isend_tensor_dict(
        self,
        values: dict[str, Any],
        *,
        dst: int | None = None,
        all_gather_group: Collective | None = None,
        all_gather_tensors: Mapping[str, bool] | None = None,
    ) -> TensorDictSend:
        """Starts `send_tensor_dict` and returns at once. The tensors must not change until they have been sent.

        >>> request = pp.isend_tensor_dict({"hidden": hidden})
        """
        choices = dict(all_gather_tensors or {})
        return TensorDictSend(self._native.isend_tensor_dict(lambda: values, dst, native_or_none(all_gather_group), choices))

    def recv_tensor_dict(self, *, src: int | None = None, all_gather_group: Collective | None = None) -> dict[str, Any]:
        """Returns the next dict from a rank; without `src` from the previous one.

        >>> values = pp.recv_tensor_dict()
        """
        return self._native.recv_tensor_dict(src, native_or_none(all_gather_group))

    def irecv_tensor_dict(self, *, src: int | None = None, all_gather_group: Collective | None = None) -> TensorDictReceive:
        """Starts `recv_tensor_dict` and returns at once. Dicts arrive in the order in which their receives were started.

        >>> request = pp.irecv_tensor_dict()
        """
        return TensorDictReceive(self._native.irecv_tensor_dict(src, native_or_none(all_gather_group)))

    def dispatch(
        self,
        hidden_states: TensorLike,
        router_logits: TensorLike,
        *,
        is_sequence_parallel: bool = False,
        sizes: Sequence[int] = (),
        extra_tensors: Sequence[TensorLike] = (),
    ) -> Dispatched:
        """Joins the tokens of all ranks, for experts that are spread over them. Collective.

        Uses the group given as `data_parallel`, or this one with `is_sequence_parallel`; without either the tokens stay
        local. `sizes` are the rows of each rank; without them the ranks exchange them.

        >>> tokens = ep.dispatch(hidden_states, router_logits)
        >>> mine = ep.combine(experts(tokens.hidden_states), tokens.route)
        """
        return Dispatched(
            *self._native.dispatch(hidden_states, router_logits, is_sequence_parallel, list(sizes), extra_tensors)
        )

    def combine(self, hidden_states: TensorLike, route: _core.ExpertRoute, *, order: ReduceOrder = "any") -> Tensor:
        """Adds all ranks' results for the dispatched tokens and returns this rank's own rows. Collective.

        >>> mine = ep.combine(results, tokens.route)
        """
        return self._native.combine(hidden_states, route, order)

    def destroy(self) -> None:
        """Leaves the group.

        >>> tp.destroy()
        """
        self._native.destroy()
