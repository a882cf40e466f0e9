"""vLLM's message queue and stateless process group, over crossrank.

`MessageQueue` has the interface of `vllm.distributed.device_communicators.shm_broadcast.MessageQueue`, `GroupCoordinator` that
of `vllm.distributed.parallel_state`, and `StatelessProcessGroup` that of `vllm.distributed.utils`. A reader or writer that
dies ends the waits of the others with an error that names it. Objects are pickled, as in vLLM: use the queue only between ranks
of one job.
"""

from __future__ import annotations

import os
import pickle
import secrets
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import crossrank
from crossrank._types import ReduceOp

from . import groups
from .vllm_coordinator import GroupCoordinator

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["GroupCoordinator", "MessageQueue", "QueueHandle", "StatelessProcessGroup"]


_OPERATORS: dict[Any, ReduceOp] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}


class StatelessProcessGroup:
    """A group of ranks that needs no `torch.distributed`. Follows vLLM's class of that name."""

    def __init__(self, collective: crossrank.Collective) -> None:
        self.collective = collective
        self.rank = collective.rank
        self.world_size = collective.world_size
        # Barriers that timed out. The other ranks still need this rank's part in them.
        self._late_barriers: list[Any] = []
        self._pending_sends: deque[Any] = deque()

    @staticmethod
    def create(
        host: str,
        port: int,
        rank: int,
        world_size: int,
        data_expiration_seconds: int = 3600,
        store_timeout: int = 300,
        listen_socket: Any = None,
    ) -> StatelessProcessGroup:
        """Connects ranks that name the same address. `data_expiration_seconds` and `listen_socket` are not needed."""
        del data_expiration_seconds, listen_socket
        job = f"stateless-{host}-{port}".replace(":", "-").replace("/", "-")
        # The thread sends objects while their sender computes.
        collective = groups.connect(
            rank=rank, world_size=world_size, job_id=job, connect_timeout=store_timeout, progress="thread"
        )
        return StatelessProcessGroup(collective)

    def send_obj(self, obj: Any, dst: int) -> None:
        """Sends an object to rank `dst`. Does not wait for that rank."""
        while self._pending_sends and self._pending_sends[0].test():
            self._pending_sends.popleft()
        data = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
        length = len(data).to_bytes(8, "little")
        for part in (length, data):
            self._pending_sends.append(self.collective.isend(part, dst=dst))

    def recv_obj(self, src: int) -> Any:
        """Returns the next object from rank `src`."""
        length = bytearray(8)
        self.collective.recv(length, src=src)
        data = bytearray(int.from_bytes(length, "little"))
        self.collective.recv(data, src=src)
        return pickle.loads(data)

    def broadcast_obj(self, obj: Any | None, src: int) -> Any:
        """Returns the object of rank `src` on all ranks; on that rank the object itself."""
        received = self.collective.broadcast_object(obj, root=src, pickle=True)
        return obj if self.rank == src else received

    def all_gather_obj(self, obj: Any) -> list[Any]:
        """Returns the objects of all ranks, in rank order; of this rank the object itself."""
        gathered = self.collective.all_gather_objects(obj, pickle=True)
        gathered[self.rank] = obj
        return gathered

    def barrier(self, timeout: float = 30.0) -> None:
        """Blocks until all ranks have called it. `RuntimeError` when they have not come within `timeout` seconds.

        A late rank then passes this barrier, and the next call is another barrier.
        """
        barrier = self.collective.ibarrier()
        if not barrier.wait(timeout):
            self._late_barriers.append(barrier)
            raise RuntimeError(f"not all ranks came to the barrier within {timeout} s")
        self._late_barriers = [late for late in self._late_barriers if not late.test()]

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """Returns the tensor of rank `src` on all ranks."""
        return self.broadcast_obj(tensor, src)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        """Sends a tensor to rank `dst`."""
        self.send_obj(tensor, dst)

    def recv(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """Fills the tensor with the next one from rank `src` and returns it."""
        return tensor.copy_(self.recv_obj(src))

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        """Returns the sum, product, minimum or maximum of the tensors of all ranks. `UsageError` for another operator."""
        if op not in _OPERATORS:
            raise crossrank.UsageError(f"all_reduce: op is {op}, expected one of {', '.join(map(str, _OPERATORS))}")
        result = tensor.clone(memory_format=torch.contiguous_format)
        self.collective.all_reduce(result, op=_OPERATORS[op])
        return result


@dataclass(frozen=True)
class QueueHandle:
    """What a process needs to read a queue. It can be pickled."""

    local_reader_ranks: list[int]
    job: str = ""  # of a queue whose ends still have to connect
    native: bytes = b""  # of a queue that its ranks have made together
    max_chunk_bytes: int = 0
    max_chunks: int = 0


def _tensor_of(memory: bytearray, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Returns a tensor over memory of its own."""
    return torch.frombuffer(memory, dtype=dtype).view(shape) if len(memory) else torch.empty(shape, dtype=dtype, device="cpu")


class _Parts(list["Buffer"]):
    """A file for a pickler, which keeps what is written as it is."""

    def write(self, part: Buffer) -> None:
        """Adds a part."""
        self.append(part)


class _Pickler(pickle.Pickler):
    """Pickles objects into the parts of a message. Long bytes are a part of their own, without a copy.

    Plain tensors are pickled as their bytes. Torch's own way takes several copies, and fails for some dtypes.
    """

    def __init__(self) -> None:
        self._parts = _Parts()
        super().__init__(self._parts, protocol=pickle.HIGHEST_PROTOCOL)

    def parts_of(self, obj: Any) -> list[Buffer]:
        """Returns the parts of one message. After an exception the pickler cannot be used any more."""
        self.dump(obj)
        self.clear_memo()  # it refers to the object
        parts = self._parts.copy()
        self._parts.clear()
        return parts

    def reducer_override(self, obj: Any) -> Any:
        """Returns how a tensor is rebuilt, and leaves everything else to its class."""
        plain = type(obj) is torch.Tensor and obj.device.type == "cpu" and obj.layout == torch.strided
        if not plain or obj.requires_grad or obj.is_quantized or obj.is_conj() or obj.is_neg():
            return NotImplemented
        flat = obj.contiguous().view(-1)
        # A tensor of one element is contiguous whatever its stride is.
        elements = flat.as_strided((flat.numel(),), (1,), flat.storage_offset()).view(torch.uint8)
        return _tensor_of, (pickle.PickleBuffer(memoryview(crossrank.as_tensor(elements))), obj.dtype, obj.shape)


def _limit(timeout: float | None) -> float:
    """Returns a limit for crossrank, whose own default is the timeout of the group."""
    return float("inf") if timeout is None else max(0.0, timeout)


def _collective_of(pg: Any) -> crossrank.Collective:
    """Returns a group with the ranks of a process group of torch, of ours, or of vLLM."""
    if isinstance(pg, StatelessProcessGroup):
        return pg.collective
    if isinstance(pg, dist.ProcessGroup):
        return groups.group_of(pg)
    job = pg.broadcast_obj(secrets.token_hex(16) if pg.rank == 0 else None, 0)
    return groups.connect(rank=pg.rank, world_size=pg.world_size, job_id=job)


# The writers of this process whose readers have not attached yet.
_writers: weakref.WeakValueDictionary[str, MessageQueue] = weakref.WeakValueDictionary()


class MessageQueue:
    """A queue from one rank to all others. Objects arrive in order, each at every reader.

    The constructor makes the writer's endpoint, for a writer outside the readers' group: readers attach by its handle, and
    `wait_until_ready` connects all endpoints. With a group, `create_from_process_group` does all of this.
    """

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: list[int] | None = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: str | None = None,
        enable_shm_tensor_arena: bool = False,
    ) -> None:
        """Makes the writer's endpoint of a queue for readers on this host. The last two arguments are not needed."""
        del connect_ip, enable_shm_tensor_arena
        if n_local_reader != n_reader:
            raise crossrank.UsageError(f"{n_reader - n_local_reader} of {n_reader} readers are on other hosts")
        readers = list(range(n_reader)) if local_reader_ranks is None else list(local_reader_ranks)
        job = f"queue-{secrets.token_hex(16)}"
        self._start(None, QueueHandle(readers, job=job, max_chunk_bytes=max_chunk_bytes, max_chunks=max_chunks))
        self._is_writer = True
        self._is_local_reader = False
        self._pid = os.getpid()
        _writers[job] = self

    def _start(self, queue: crossrank.MessageQueue | None, handle: QueueHandle | None) -> None:
        self._connected = queue
        self.handle = handle
        self.shutting_down = False
        self._is_writer = queue is not None and queue.is_writer
        self._is_local_reader = not self._is_writer
        self._is_remote_reader = False
        self._place = 0
        self._pickler: _Pickler | None = None  # not in use; making one takes as long as pickling a small object

    @staticmethod
    def _of(queue: crossrank.MessageQueue | None, handle: QueueHandle | None) -> MessageQueue:
        made = MessageQueue.__new__(MessageQueue)
        made._start(queue, handle)
        return made

    @property
    def _queue(self) -> crossrank.MessageQueue:
        if self._connected is None:
            raise crossrank.UsageError("the endpoints of this queue are not connected: call wait_until_ready() on each of them")
        return self._connected

    @staticmethod
    def create_from_process_group(
        pg: Any,
        max_chunk_bytes: int,
        max_chunks: int,
        writer_rank: int = 0,
        external_writer_handle: QueueHandle | None = None,
        blocking: bool = True,
    ) -> MessageQueue:
        """Makes a queue between the ranks of a group. Collective.

        `max_chunk_bytes` is the length up to which a message takes the fast path; longer ones are sent too.
        With `external_writer_handle` all ranks of the group read a queue whose writer is outside; if not `blocking`, they
        call `wait_until_ready` themselves.
        """
        collective = _collective_of(pg)
        if external_writer_handle is not None:
            reader = MessageQueue.create_from_handle(external_writer_handle, collective.rank)
            if blocking:
                reader.wait_until_ready()
            return reader
        queue = crossrank.MessageQueue.create(
            collective, writer_rank=writer_rank, chunk_bytes=max_chunk_bytes, chunks=max_chunks
        )
        readers = [rank for rank in range(collective.world_size) if rank != writer_rank]
        handle = QueueHandle(readers, native=queue.handle()) if collective.rank == writer_rank else None
        return MessageQueue._of(queue, handle)

    @staticmethod
    def create_from_handle(handle: QueueHandle, rank: int) -> MessageQueue:
        """Attaches a reader to a queue of another process of this host."""
        place = handle.local_reader_ranks.index(rank)
        if handle.native:
            return MessageQueue._of(crossrank.MessageQueue.attach(handle.native, reader=place), handle)
        reader = MessageQueue._of(None, handle)
        reader._place = place
        writer = _writers.get(handle.job)
        if writer is not None and writer._pid == os.getpid():  # a forked child has the parent's writer, too
            reader._connected = crossrank.MessageQueue.attach(writer._queue_of_this_process(), reader=place)
        return reader

    def _queue_of_this_process(self) -> bytes:
        """Makes the queue of a writer whose readers are in this process too, and returns its native handle."""
        assert self.handle is not None
        if self._connected is None:
            self._connected = crossrank.MessageQueue.create_writer(
                groups.connect(rank=0, world_size=1, job_id=self.handle.job),
                readers=len(self.handle.local_reader_ranks),
                chunk_bytes=self.handle.max_chunk_bytes,
                chunks=self.handle.max_chunks,
            )
        return self._connected.handle()

    def export_handle(self) -> QueueHandle:
        """Returns the handle with which others can attach."""
        if self.handle is None:
            raise crossrank.UsageError("only the writer of a queue can export its handle")
        return self.handle

    def wait_until_ready(self) -> None:
        """Connects the endpoints of a queue that was made without a group. Each endpoint calls it; it returns when all have."""
        if self._connected is not None:
            return
        assert self.handle is not None
        collective = groups.connect(
            rank=0 if self._is_writer else self._place + 1,
            world_size=len(self.handle.local_reader_ranks) + 1,
            job_id=self.handle.job,
        )
        self._connected = crossrank.MessageQueue.create(
            collective, chunk_bytes=self.handle.max_chunk_bytes, chunks=self.handle.max_chunks
        )

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Sends an object. `TimeoutError` when the slowest reader has not read a message within `timeout` seconds.

        Without `timeout` it waits without a limit, until a reader dies.
        """
        pickler, self._pickler = self._pickler or _Pickler(), None
        parts = pickler.parts_of(obj)
        self._pickler = pickler
        self._queue.enqueue_parts(parts, timeout=_limit(timeout))

    def dequeue(self, timeout: float | None = None, indefinite: bool = False, *, cancel: Any = None) -> Any:
        """Returns the next object. `TimeoutError` when none came within `timeout` seconds; at once for a negative number.

        Without `timeout`, or with `indefinite`, it waits without a limit, until the writer dies. After `shutdown` it raises
        `RuntimeError`, as it does when the event `cancel` is set. After the writer's `shutdown` it returns None once all
        messages have been read.
        """
        if self.shutting_down:
            raise RuntimeError("cancelled: the queue was shut down")
        if indefinite:
            timeout = None
        try:
            if cancel is None:
                return self._queue.read_bytes(pickle.loads, timeout=_limit(timeout))
            while True:
                if cancel.is_set():
                    raise RuntimeError("cancelled: the wait for a message was ended")
                step = 0.05 if timeout is None else max(0.0, min(0.05, timeout))
                if self._queue.wait_for(step):
                    return self._queue.read_bytes(pickle.loads, timeout=_limit(timeout))
                if timeout is not None:
                    timeout -= step
                    if timeout <= 0:
                        raise crossrank.TimeoutError("no message came in time")
        except crossrank.CancelledError as error:
            if not self.shutting_down:
                raise
            raise RuntimeError("cancelled: the queue was shut down") from error

    def broadcast_object(self, obj: Any = None) -> Any:
        """Sends `obj` on the writer, and returns the next object on readers."""
        if self._is_writer:
            self.enqueue(obj)
            return obj
        return self.dequeue()

    def shutdown(self) -> None:
        """Ends the waits of this process on the queue. Can be called by another thread."""
        self.shutting_down = True
        if self._connected is None:
            return
        if self._is_writer:
            self._connected.close()
        else:
            self._connected.cancel()
