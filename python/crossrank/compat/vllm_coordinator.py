"""vLLM's group coordinator over crossrank. Import it from `crossrank.compat.vllm`."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, overload

import torch

import crossrank

from . import groups

__all__ = ["GroupCoordinator"]


def _packed(values: dict[str, Any] | None) -> dict[str, Any]:
    """Returns a message with the tensors of a dict as they are, and everything else pickled."""
    if values is None:
        raise crossrank.UsageError("expected a dict on the sending rank, got None")
    tensors: dict[str, Any] = {}  # by their places, because keys may be of any type
    others: list[tuple[Any, Any]] = []
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            tensors[str(len(others))] = value
            others.append((key, None))
        else:
            others.append((key, (value,)))
    return {"others": pickle.dumps(others), "tensors": tensors}


def _choices(values: dict[str, Any], all_gather_tensors: dict[str, bool] | None) -> dict[str, bool]:
    """Returns the choices for the tensors of a dict, by the paths that they have in the message of `_packed`."""
    given = all_gather_tensors or {}
    if not given or not isinstance(values, dict):  # `_packed` refuses it, which the receiver is told
        return {}
    return {f"tensors.{place}": bool(given[key]) for place, key in enumerate(values) if key in given}


def _unpacked(message: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Returns the dict of a message, in its order. `device` is that of tensors that come from a GPU."""
    others = pickle.loads(message["others"])
    tensors = {place: tensor.torch() for place, tensor in message["tensors"].items()}
    tensors = {place: tensor if tensor.is_cpu else tensor.to(device) for place, tensor in tensors.items()}
    return {key: tensors[str(place)] if other is None else other[0] for place, (key, other) in enumerate(others)}


class _Sending:
    """The handle of a dict that is being sent."""

    def __init__(self, sending: Any) -> None:
        self._sending = sending

    def is_completed(self) -> bool:
        """Returns whether everything has been sent. Never blocks."""
        return self._sending.test()

    def wait(self) -> None:
        """Blocks until everything has been sent."""
        self._sending.wait()


class _Receiving:
    """The handle of a dict that is being received. The dict is filled when it has arrived."""

    def __init__(self, receiving: Any, values: dict[str, Any], device: torch.device) -> None:
        self._receiving: Any | None = receiving
        self._values = values
        self._device = device

    def is_completed(self) -> bool:
        """Returns whether the dict has arrived, and fills it then. Never blocks."""
        if self._receiving is not None and self._receiving.test():
            self.wait()
        return self._receiving is None

    def wait(self) -> None:
        """Blocks until the dict has arrived and is filled."""
        if self._receiving is None:
            return
        self._values.update(_unpacked(self._receiving.wait(), self._device))
        self._receiving = None


class GroupCoordinator:
    """Follows `vllm.distributed.parallel_state.GroupCoordinator`, for the ranks of one host.

    Tensors are on the CPU or on GPUs, and results are where the tensors are. `device` is the GPU `local_rank` of a group with
    `use_device_communicator`, where torch finds a GPU, and the CPU elsewhere: `recv` receives there.

    `src` and `dst` count inside the group, `ranks`, `first_rank` and their like are ranks of the job. Values that are not
    tensors are pickled, as in vLLM.
    """

    def __init__(
        self,
        group_ranks: list[list[int]],
        local_rank: int,
        torch_distributed_backend: Any = None,
        use_device_communicator: bool = True,
        use_message_queue_broadcaster: bool = False,
        group_name: str | None = None,
        use_all2all: bool = False,
    ) -> None:
        """Makes all the listed groups. Collective over the job. The arguments of the backend and of all2all are not needed."""
        del torch_distributed_backend, use_all2all
        has_gpu = use_device_communicator and torch.cuda.is_available()
        self.device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
        self._group = crossrank.GroupCoordinator.create(
            groups.world(),
            group_ranks,
            name=group_name or "anonymous",
            device_communicator=use_device_communicator,
            broadcaster=use_message_queue_broadcaster,
        )
        self.rank = groups.rank()
        self.local_rank = local_rank
        self.ranks = self._group.ranks
        self.world_size = self._group.world_size
        self.rank_in_group = self._group.rank_in_group
        self.unique_name = self._group.unique_name
        self.cpu_group = self._group.cpu_group
        self._pending_sends: deque[_Sending] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._group.__exit__(kind, error, trace)

    # Ranks

    @property
    def first_rank(self) -> int:
        """The job rank of the group's first member."""
        return self.ranks[0]

    @property
    def last_rank(self) -> int:
        """The job rank of the group's last member."""
        return self.ranks[-1]

    @property
    def is_first_rank(self) -> bool:
        """Whether this rank is the group's first member."""
        return self.rank == self.first_rank

    @property
    def is_last_rank(self) -> bool:
        """Whether this rank is the group's last member."""
        return self.rank == self.last_rank

    @property
    def next_rank(self) -> int:
        """The job rank of the next member; after the last comes the first."""
        return self.ranks[(self.rank_in_group + 1) % self.world_size]

    @property
    def prev_rank(self) -> int:
        """The job rank of the previous member; before the first comes the last."""
        return self.ranks[(self.rank_in_group - 1) % self.world_size]

    # Collectives on tensors

    def barrier(self) -> None:
        """Blocks until all ranks have called it."""
        self._group.barrier()

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Returns the sum of all ranks' tensors; in a group of one rank the tensor itself."""
        return input_ if self.world_size == 1 else self._group.all_reduce(input_).torch()

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Returns the tensors of all ranks joined along `dim`; in a group of one rank the tensor itself."""
        return input_ if self.world_size == 1 else self._group.all_gather(input_, dim=dim).torch()

    @overload
    def all_gatherv(self, input_: torch.Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> torch.Tensor: ...
    @overload
    def all_gatherv(
        self, input_: list[torch.Tensor], dim: int = 0, sizes: Sequence[int] | None = None
    ) -> list[torch.Tensor]: ...
    def all_gatherv(
        self, input_: torch.Tensor | list[torch.Tensor], dim: int = 0, sizes: Sequence[int] | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Returns tensors of `sizes[r]` rows on rank r joined along their first dimension; a list for a list."""
        if dim != 0:
            raise crossrank.UsageError(f"all_gatherv joins along dimension 0, and not {dim}")
        if isinstance(input_, list):
            return [self.all_gatherv(each, dim, sizes) for each in input_]
        return self._group.all_gatherv(input_, sizes=sizes or ()).torch()

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Adds the tensors of all ranks and returns the r-th of equal parts on rank r."""
        return input_ if self.world_size == 1 else self._group.reduce_scatter(input_, dim=dim).torch()

    def reduce_scatterv(self, input_: torch.Tensor, dim: int = -1, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Adds the tensors of all ranks and returns `sizes[r]` entries on rank r."""
        return self._group.reduce_scatterv(input_, dim=dim, sizes=sizes or ()).torch()

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """Returns the tensors of all ranks joined, on rank `dst`; None elsewhere."""
        if self.world_size == 1:
            return input_
        gathered = self._group.gather(input_, dst=dst, dim=dim)
        return None if gathered is None else gathered.torch()

    def broadcast(self, input_: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Fills the tensor with that of rank `src` and returns it."""
        whole = input_.contiguous()
        self._group.broadcast(whole, src=src)
        return input_ if whole is input_ else input_.copy_(whole)

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Sends a tensor to rank `dst`; without it to the next one."""
        self._group.send(tensor, dst=dst)

    def recv(self, size: int | Sequence[int], dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """Returns the next tensor from rank `src`; without it from the previous one."""
        received = torch.empty(size, dtype=dtype, device=self.device)
        if self.device.type == "cpu":
            expected = crossrank.as_tensor(received)
            return self._group.recv(expected.shape, expected.dtype, src=src).torch()
        self._group.device_group.recv(received, src=(self.rank_in_group - 1) % self.world_size if src is None else src)
        return received

    # Objects and dicts

    def broadcast_object(self, obj: Any | None = None, src: int = 0) -> Any:
        """Returns the object of rank `src` on every rank; on that rank the object itself."""
        if self.world_size == 1:
            return obj
        received = self._group.broadcast_object(obj, src=src, pickle=True)
        return obj if self.rank_in_group == src else received

    def broadcast_object_list(self, obj_list: list[Any], src: int = 0, group: Any = None) -> list[Any]:
        """Fills the list with the objects of rank `src` and returns it. `group` is not needed."""
        del group
        obj_list[:] = self.broadcast_object(obj_list, src)
        return obj_list

    def send_object(self, obj: Any, dst: int) -> None:
        """Sends an object to rank `dst`."""
        self.cpu_group.send_object(obj, dst=dst, pickle=True)

    def recv_object(self, src: int) -> Any:
        """Returns the next object from rank `src`."""
        return self.cpu_group.recv_object(src=src, pickle=True)

    def broadcast_tensor_dict(
        self, tensor_dict: dict[str, Any] | None = None, src: int = 0, group: Any = None, metadata_group: Any = None
    ) -> dict[str, Any] | None:
        """Returns the dict of rank `src` on every rank. `group` and `metadata_group` are not needed."""
        del group, metadata_group
        if self.world_size == 1:
            return tensor_dict
        if self.rank_in_group == src:
            self._group._native.broadcast_tensor_dict(lambda: _packed(tensor_dict), src)
            return tensor_dict
        return _unpacked(self._group.broadcast_tensor_dict(src=src), self.device)

    def send_tensor_dict(
        self,
        tensor_dict: dict[str, Any],
        dst: int | None = None,
        all_gather_group: GroupCoordinator | None = None,
        all_gather_tensors: dict[str, bool] | None = None,
    ) -> None:
        """Sends a dict to rank `dst`; without it to the next one. With `all_gather_group` each of its ranks sends a part.

        `all_gather_tensors` says by key whether a tensor is sent in parts. Without an entry, one that can be divided is.
        """
        if self.world_size > 1:
            members = None if all_gather_group is None else all_gather_group.cpu_group._native
            choices = _choices(tensor_dict, all_gather_tensors)
            self._group._native.send_tensor_dict(lambda: _packed(tensor_dict), dst, members, choices)

    def isend_tensor_dict(
        self,
        tensor_dict: dict[str, Any],
        dst: int | None = None,
        all_gather_group: GroupCoordinator | None = None,
        all_gather_tensors: dict[str, bool] | None = None,
    ) -> list[_Sending]:
        """Starts `send_tensor_dict` and returns its handles: as in vLLM, one for the metadata and others for the tensors.

        The tensors must not change until all handles have been waited for. The coordinator keeps the send, too, so that a
        caller may drop the handles.
        """
        if self.world_size == 1:
            return []
        while self._pending_sends and self._pending_sends[0].is_completed():
            self._pending_sends.popleft()
        members = None if all_gather_group is None else all_gather_group.cpu_group._native
        choices = _choices(tensor_dict, all_gather_tensors)
        sending = _Sending(self._group._native.isend_tensor_dict(lambda: _packed(tensor_dict), dst, members, choices))
        self._pending_sends.append(sending)
        return [sending, sending]

    def recv_tensor_dict(
        self,
        src: int | None = None,
        all_gather_group: GroupCoordinator | None = None,
        all_gather_tensors: dict[str, bool] | None = None,
    ) -> dict[str, Any] | None:
        """Returns the next dict from rank `src`; without it from the previous one.

        The message says which tensors were sent in parts, so `all_gather_tensors` is not needed.
        """
        del all_gather_tensors
        if self.world_size == 1:
            return None
        message = self._group.recv_tensor_dict(src=src, all_gather_group=_members(all_gather_group))
        return _unpacked(message, self.device)

    def irecv_tensor_dict(
        self,
        src: int | None = None,
        all_gather_group: GroupCoordinator | None = None,
        all_gather_tensors: dict[str, bool] | None = None,
    ) -> tuple[dict[str, Any] | None, list[_Receiving], list[Callable[[], None]]]:
        """Starts `recv_tensor_dict`. Returns a dict, the handles that fill it, and what is to be called afterwards: nothing.

        The dict is empty until its handle has been waited for, or is completed. Dicts arrive in the order of the calls.
        """
        del all_gather_tensors
        if self.world_size == 1:
            return None, [], []
        values: dict[str, Any] = {}
        receiving = self._group.irecv_tensor_dict(src=src, all_gather_group=_members(all_gather_group))
        return values, [_Receiving(receiving, values, self.device)], []

    def destroy(self) -> None:
        """Leaves the group."""
        self._group.destroy()


def _members(group: GroupCoordinator | None) -> crossrank.Collective | None:
    return None if group is None else group.cpu_group
