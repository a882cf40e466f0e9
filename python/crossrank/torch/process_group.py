"""The `torch.distributed` backend "crossrank" for CPU tensors."""

# The stubs of torch declare several overloads of each method; `with_short_form` adds those that are not written here.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

import crossrank
from crossrank.compat import groups
from crossrank.errors import from_native

from .dynamo import not_compiled
from .layout import (
    bytes_of,
    copy_back,
    distribute,
    elements_of,
    joined_bytes,
    require_dtype,
    require_parts,
    split_bytes,
    to_dense,
    without_overlap,
)
from .monitored_barrier import MonitoredBarrier
from .overloads import with_short_form
from .pending import Operations, OperationWork, Started
from .reduction import Reduction
from .sparse import SparseReductions

__all__ = ["CrossrankProcessGroup", "register"]

Finish = Callable[[], list[Any]]

# Torch's options have a negative timeout unless the caller sets one.
_UNSET = timedelta()
# Covers the time between a rank's check for a failure in torch's store and its connection.
_LINGER = timedelta(seconds=5)


@not_compiled
class CrossrankProcessGroup(dist.ProcessGroup):
    """A process group whose operations are those of a `crossrank.Collective`.

    Torch's own Python functions call the methods below, which all return a `Work`. The tensors of an operation stay
    alive until it has completed.
    """

    def __init__(self, collective: crossrank.Collective, name: str, timeout: timedelta) -> None:
        super().__init__(collective.rank, collective.world_size)
        self._collective = collective
        self._timeout = timeout
        self._new_timeout: timedelta | None = None
        self._name = name
        self._description = "undefined"
        everyone = [list(range(collective.world_size))]
        self._monitored_barrier = MonitoredBarrier(collective.split(everyone, name="monitored_barrier"))
        rows = collective.split(everyone, name="sparse")

        def abort(reason: str) -> None:
            for group in (collective, rows):
                with suppress(crossrank.Error):  # the group may be dead already
                    group.abort(reason)

        self._abort_groups = abort
        self._operations = Operations(name, abort)
        self._sparse = SparseReductions(collective, rows, self._operations, abort)

    # Names and sizes

    def getBackendName(self) -> str:
        """Returns "crossrank"."""
        return "crossrank"

    def name(self) -> str:
        """Returns "crossrank"."""
        return "crossrank"

    def _set_group_name(self, name: str) -> None:
        self._name = name
        super()._set_group_name(cast(Any, name))

    @property
    def group_name(self) -> str:
        """The name under which torch knows the group."""
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description
        super()._set_group_desc(description)

    @property
    def group_desc(self) -> str:
        """Torch's description of the group."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices of the tensors that the group takes, which torch asks for before a monitored barrier."""
        return [torch.device("cpu")]

    def _get_backend(self, _device: torch.device) -> CrossrankProcessGroup:
        """Returns the group itself, which torch asks whether it can fuse point-to-point operations."""
        return self

    @property
    def supports_splitting(self) -> bool:
        """False: torch's `split_group` refuses the group, and `new_group` makes subgroups."""
        return False

    @property
    def collective(self) -> crossrank.Collective:
        """The group for calls of crossrank itself. Do not use it while operations of torch are in progress."""
        return self._collective

    # Operations

    def _run(self, opts: Any, start: Callable[[], Started]) -> OperationWork:
        return self._operations.run(start, waits=_waits(opts), limit=self._limit(opts))

    def _limit(self, opts: Any = None) -> timedelta | None:
        """Returns the timeout of an operation, or None for the one that the group was made with."""
        given = getattr(opts, "timeout", _UNSET)
        return given if given > _UNSET else self._new_timeout

    @with_short_form(AllreduceOptions, ["list"], op="reduceOp")
    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> OperationWork:
        """Reduces each tensor over all ranks, in place."""
        return self._reduce_all(tensors, opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> OperationWork:
        """Does the same as `allreduce`. Torch's options for it are of another class."""
        return self._reduce_all(list(tensors), opts or AllreduceOptions())

    def _reduce_all(self, tensors: Sequence[Tensor], opts: Any) -> OperationWork:
        if len(tensors) == 1 and tensors[0].is_sparse:
            if opts.reduceOp != dist.ReduceOp.SUM:
                raise ValueError("sparse tensors can only be added: use ReduceOp.SUM and scale the result")
            return self._sparse.sum(tensors[0], _waits(opts), self._limit(opts))
        reduction = Reduction(opts.reduceOp, self.size())

        def start() -> Started:
            dense = [to_dense(tensor) for tensor in tensors]
            prepared = [reduction.prepare(tensor) for tensor in dense]
            requests = [
                self._collective.iall_reduce(value, op=reduction.operator(tensor.dtype))
                for tensor, value in zip(dense, prepared, strict=True)
            ]
            return requests, lambda: self._end_reduction(tensors, dense, prepared, reduction)

        return self._run(opts, start)

    @staticmethod
    def _end_reduction(
        tensors: Sequence[Tensor], dense: Sequence[Tensor], prepared: Sequence[Tensor], reduction: Reduction
    ) -> list[Tensor]:
        for tensor, own, value in zip(tensors, dense, prepared, strict=True):
            result = value.view(torch.bool) if own.dtype == torch.bool else value
            if own.is_complex():
                result = torch.view_as_complex(result)
            reduction.complete(result)
            copy_back(tensor, result)
        return list(tensors)

    @with_short_form(ReduceOptions, ["list"], root="rootRank", op="reduceOp")
    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> OperationWork:
        """Reduces a tensor to the root. The tensors of other ranks keep their values."""
        reduction, root = Reduction(opts.reduceOp, self.size()), opts.rootRank

        def start() -> Started:
            dense = [to_dense(tensor) for tensor in tensors]
            prepared = [reduction.prepare(tensor) for tensor in dense]
            requests = [
                self._collective.ireduce(value, op=reduction.operator(tensor.dtype), root=root)
                for tensor, value in zip(dense, prepared, strict=True)
            ]
            if self.rank() == root:
                return requests, lambda: self._end_reduction(tensors, dense, prepared, reduction)
            return requests, lambda: list(tensors)

        return self._run(opts, start)

    @with_short_form(BroadcastOptions, ["list"], root="rootRank")
    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> OperationWork:
        """Fills the tensors of all ranks with those of the root."""

        def start() -> Started:
            dense = [to_dense(tensor) for tensor in tensors]
            requests = [self._collective.ibroadcast(elements_of(tensor), root=opts.rootRank) for tensor in dense]
            return requests, lambda: self._filled(tensors, dense)

        return self._run(opts, start)

    @staticmethod
    def _filled(tensors: Sequence[Tensor], dense: Sequence[Tensor]) -> list[Tensor]:
        for tensor, own in zip(tensors, dense, strict=True):
            copy_back(tensor, own)
        return list(tensors)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> OperationWork:
        """Joins the tensors of all ranks in `output`, along its first dimension."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> OperationWork:
        """Joins several tensors, each as `all_gather_single` does."""
        opts = opts or AllgatherOptions()
        outputs, inputs = list(outputs), list(inputs)
        for output, own in zip(outputs, inputs, strict=True):
            if output.numel() != own.numel() * self.size():
                raise ValueError(
                    f"all_gather needs an output of {own.numel() * self.size()} elements for {self.size()} ranks, "
                    f"and this one has {output.numel()}"
                )
            require_dtype("all_gather", own, [output])

        def start() -> Started:
            dense = [to_dense(output) for output in outputs]
            requests = [
                self._collective.iall_gather(bytes_of(output), bytes_of(without_overlap(to_dense(own), output)))
                for output, own in zip(dense, inputs, strict=True)
            ]
            return requests, lambda: self._filled(outputs, dense)

        return self._run(opts, start)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @with_short_form(AllgatherOptions, ["lists", "list"])
    def allgather(
        self, output_tensors: Sequence[Sequence[Tensor]], input_tensors: Sequence[Tensor], opts: Any = None
    ) -> OperationWork:
        """Fills each list of outputs with one tensor of each rank. Their sizes may differ between ranks."""
        for outputs, own in zip(output_tensors, input_tensors, strict=True):
            require_dtype("all_gather", own, outputs)

        def start() -> Started:
            endings: list[Finish] = []
            requests = []
            for outputs, own in zip(output_tensors, input_tensors, strict=True):
                lengths = [output.numel() * output.element_size() for output in outputs]
                joined = torch.empty(sum(lengths), dtype=torch.uint8)
                requests.append(self._collective.iall_gatherv(joined, bytes_of(to_dense(own)), rows=lengths))
                endings.append(lambda outputs=outputs, joined=joined: distribute(joined, outputs))
            return requests, lambda: endings[0]() if len(endings) == 1 else [ending() for ending in endings]

        return self._run(opts, start)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], input_list: Sequence[Tensor], opts: Any = None
    ) -> OperationWork:
        """Gathers each input: `output_lists[r]` gets the tensors of rank r."""
        outputs = [[row[i] for row in output_lists] for i in range(len(input_list))]
        return self.allgather(outputs, input_list, opts)

    @with_short_form(GatherOptions, ["lists", "list"], root="rootRank")
    def gather(
        self, output_tensors: Sequence[Sequence[Tensor]], input_tensors: Sequence[Tensor], opts: Any = None
    ) -> OperationWork:
        """Fills the root's list of outputs with one tensor of each rank."""
        root = opts.rootRank
        outputs = output_tensors[0] if self.rank() == root else []
        if self.rank() == root:
            require_parts("gather", input_tensors[0], outputs, self.size())

        def start() -> Started:
            own = bytes_of(to_dense(input_tensors[0]))
            joined = torch.empty(own.numel() * len(outputs), dtype=torch.uint8)
            request = self._collective.igather(joined, own, root=root)
            return [request], lambda: distribute(joined, outputs)

        return self._run(opts, start)

    @with_short_form(ScatterOptions, ["list", "lists"], root="rootRank")
    def scatter(
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> OperationWork:
        """Gives each rank one tensor of the root's list."""
        root = opts.rootRank
        parts = input_tensors[0] if self.rank() == root else []
        if self.rank() == root:
            require_parts("scatter", output_tensors[0], parts, self.size())

        def start() -> Started:
            dense = to_dense(output_tensors[0])
            request = self._collective.iscatter(bytes_of(dense), joined_bytes(parts), root=root)
            return [request], lambda: self._filled(output_tensors, [dense])

        return self._run(opts, start)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> OperationWork:
        """Reduces the inputs of all ranks and gives rank r the r-th part."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> OperationWork:
        """Reduces several tensors, each as `reduce_scatter_single` does."""
        opts = opts or ReduceScatterOptions()
        outputs = list(outputs)
        for output, own in zip(outputs, inputs, strict=True):
            if own.numel() != output.numel() * self.size():
                raise ValueError(
                    f"reduce_scatter needs an input of {output.numel() * self.size()} elements for {self.size()} ranks, "
                    f"and this one has {own.numel()}"
                )
            require_dtype("reduce_scatter", output, [own])
        return self._start_reduce_scatter(outputs, [[own] for own in inputs], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @with_short_form(ReduceScatterOptions, ["list", "lists"], op="reduceOp")
    def reduce_scatter(
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> OperationWork:
        """Reduces the lists of all ranks and gives rank r the r-th tensor. Sizes may differ between the entries."""
        for output, parts in zip(output_tensors, input_tensors, strict=True):
            require_dtype("reduce_scatter", output, parts)
            if len(parts) != self.size() or parts[self.rank()].numel() != output.numel():
                raise ValueError(
                    f"reduce_scatter needs {self.size()} tensors, that of this rank with {output.numel()} elements, "
                    f"and this list has {[part.numel() for part in parts]} elements"
                )
        return self._start_reduce_scatter(output_tensors, input_tensors, opts)

    def _start_reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> OperationWork:
        reduction = Reduction(opts.reduceOp, self.size())

        def start() -> Started:
            dense = [to_dense(output) for output in outputs]
            prepared, requests = [], []
            for own, parts in zip(dense, inputs, strict=True):
                flat = [reduction.prepare(to_dense(part)).reshape(-1) for part in parts]
                output = Reduction(dist.ReduceOp.SUM, 1).prepare(own)
                if output.dtype != flat[0].dtype:  # the factor has turned integers into floats
                    output = torch.empty_like(output, dtype=flat[0].dtype)
                prepared.append(output)
                values = without_overlap(flat[0], output) if len(flat) == 1 else torch.cat(flat)
                operator = reduction.operator(own.dtype)
                if len(flat) == 1:
                    requests.append(self._collective.ireduce_scatter(output.view(-1), values, op=operator))
                else:
                    rows = [part.numel() for part in flat]
                    requests.append(self._collective.ireduce_scatterv(output.view(-1), values, rows=rows, op=operator))
            return requests, lambda: self._end_reduction(outputs, dense, prepared, reduction)

        return self._run(opts, start)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any = None,
    ) -> OperationWork:
        """Sends rows of `input` to each rank and receives rows of `output` from each rank."""
        opts = opts or AllToAllOptions()
        require_dtype("all_to_all", output, [input])

        # Now: the program may use the lists again before the operation has begun.
        receive = split_bytes(output, output_split_sizes, self.size())
        send = split_bytes(input, input_split_sizes, self.size())

        def start() -> Started:
            dense = to_dense(output)
            request = self._collective.iall_to_allv(bytes_of(dense), bytes_of(to_dense(input)), send=send, receive=receive)
            return [request], lambda: self._filled([output], [dense])

        return self._run(opts, start)

    alltoall_base = all_to_all_single

    @with_short_form(AllToAllOptions, ["list", "list"])
    def alltoall(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None) -> OperationWork:
        """Sends one tensor to each rank and receives one from each rank."""
        for output, own in zip(output_tensors, input_tensors, strict=True):
            require_dtype("all_to_all", output, [own])

        def start() -> Started:
            receive = [output.numel() * output.element_size() for output in output_tensors]
            send = [own.numel() * own.element_size() for own in input_tensors]
            joined = torch.empty(sum(receive), dtype=torch.uint8)
            request = self._collective.iall_to_allv(joined, joined_bytes(input_tensors), send=send, receive=receive)
            return [request], lambda: distribute(joined, output_tensors)

        return self._run(opts, start)

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> OperationWork:
        """Sends a tensor to one rank."""
        tensors = list(tensors)

        def start() -> Started:
            requests = [self._collective.isend(bytes_of(to_dense(tensor)), dst=dst, tag=tag) for tensor in tensors]
            return requests, lambda: list(tensors)

        return self._operations.run(start, waits=False, limit=self._limit())

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> OperationWork:
        """Receives a tensor from one rank."""
        tensors = list(tensors)

        def start() -> Started:
            dense = [to_dense(tensor) for tensor in tensors]
            requests = [self._collective.irecv(bytes_of(tensor), src=src, tag=tag) for tensor in dense]
            return requests, lambda: self._filled(tensors, dense)

        return self._operations.run(start, waits=False, source=lambda: src, is_receive=True, limit=self._limit())

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> OperationWork:
        """Receives a tensor from any rank."""
        tensors = list(tensors)
        requests: list[crossrank.Request] = []

        def start() -> Started:
            dense = [to_dense(tensor) for tensor in tensors]
            requests.extend(self._collective.irecv_any(bytes_of(tensor), tag=tag) for tensor in dense)
            return list(requests), lambda: self._filled(tensors, dense)

        return self._operations.run(start, waits=False, source=lambda: requests[0].source, is_receive=True, limit=self._limit())

    @with_short_form(BarrierOptions, [])
    def barrier(self, opts: Any = None) -> OperationWork:
        """Blocks until all ranks have called it."""
        return self._run(opts, lambda: ([self._collective.ibarrier()], list))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Blocks until all ranks have called it. Rank 0 names the ranks that are late; the group stays usable. A rank that
        dies ends it at once."""
        self._monitored_barrier.wait(self._timeout if timeout is None else timeout, wait_all_ranks)

    # End

    def shutdown(self) -> None:
        """Completes what is in progress but cancels receives, and leaves the group. The last call on the group."""
        self._sparse.close()
        self._operations.close()
        for attribute in ("_monitored_barrier", "_collective", "_abort_groups"):  # they hold the groups
            self.__dict__.pop(attribute, None)

    def abort(self) -> None:
        """Ends the operations of all ranks with an error."""
        if (abort := self.__dict__.get("_abort_groups")) is not None:
            abort("torch.distributed aborted the process group")
        self.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of the operations that start from now on."""
        self._timeout = self._new_timeout = timeout


def _waits(opts: Any) -> bool:
    """Returns whether the caller waits for the operation at once."""
    return opts is not None and not getattr(opts, "asyncOp", True)


def _create(options: Any, _backend_options: Any) -> CrossrankProcessGroup:
    """Makes a group for `init_process_group` or `new_group`. The ranks find each other by a name in torch's store."""
    store, rank, size = options.store, options.group_rank, options.group_size
    limit = options.timeout.total_seconds()
    members = options.global_ranks_in_group or range(size)
    if not options.global_ranks_in_group:
        groups.forget_processes()
    job = groups.next_job(
        store, "crossrank", rank=rank, ranks=range(size), timeout=groups.arrival_limit(limit), global_ranks=members
    )
    # Torch's timeout is long. Ranks that come after a failure find it here, so the start need not be kept for them.
    failure = f"crossrank/failed/{job}"
    if store.check([failure]):
        code, text, report, fields = json.loads(store.get(failure))
        raise from_native(code, f"the process group could not be made: {text}", report, fields | {"rank": rank})
    try:
        collective = crossrank.connect(
            rank=rank,
            world_size=size,
            job_id=job,
            linger=_LINGER,
            **groups.limits(limit),
        )
    except crossrank.Error as error:
        with suppress(RuntimeError):  # the store may be gone as well
            store.set(failure, json.dumps([error.code, str(error), error.report(), error.fields]))
        raise
    return CrossrankProcessGroup(collective, options.group_id or "", options.timeout)


def register() -> None:
    """Makes `init_process_group(backend="crossrank")` work. Importing `crossrank.torch` calls it.

    >>> crossrank.torch.register()
    >>> torch.distributed.init_process_group("crossrank")
    """
    if "crossrank" not in dist.Backend.backend_list:
        # Torch's flight recorder cannot record a group that is written in Python. The library has its own.
        getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("crossrank")
        dist.Backend.register_backend("crossrank", _create, extended_api=True, devices=["cpu"])
