"""vLLM's message queue and stateless process group, over crossrank.

`MessageQueue` has the interface of `vllm.distributed.device_communicators.shm_broadcast.MessageQueue`. A reader or writer that
dies ends the waits of the others with an error that names it. Objects are pickled, as in vLLM: use the queue only between ranks
of one job. `crossrank.GroupCoordinator` has the calls of vLLM's coordinator.
"""

from __future__ import annotations

import pickle
import secrets
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import crossrank

from . import groups

__all__ = ["MessageQueue", "QueueHandle", "StatelessProcessGroup"]


class StatelessProcessGroup:
    """A group of ranks that needs no `torch.distributed`. Follows vLLM's class of that name."""

    def __init__(self, collective: crossrank.Collective) -> None:
        self.collective = collective
        self.rank = collective.rank
        self.world_size = collective.world_size

    @staticmethod
    def create(
        host: str, port: int, rank: int, world_size: int, data_expiration_seconds: int = 3600, store_timeout: int = 300
    ) -> StatelessProcessGroup:
        """Connects ranks that name the same address. `data_expiration_seconds` is not needed."""
        del data_expiration_seconds
        job = f"stateless-{host}-{port}".replace(":", "-").replace("/", "-")
        collective = crossrank.connect(rank=rank, world_size=world_size, job_id=job, connect_timeout=store_timeout)
        return StatelessProcessGroup(collective)

    def send_obj(self, obj: Any, dst: int) -> None:
        """Sends an object to rank `dst`."""
        self.collective.send_object(obj, dst=dst, pickle=True)

    def recv_obj(self, src: int) -> Any:
        """Returns the next object from rank `src`."""
        return self.collective.recv_object(src=src, pickle=True)

    def broadcast_obj(self, obj: Any | None, src: int) -> Any:
        """Returns the object of rank `src` on all ranks."""
        return self.collective.broadcast_object(obj, root=src, pickle=True)

    def all_gather_obj(self, obj: Any) -> list[Any]:
        """Returns the objects of all ranks, in rank order."""
        return self.collective.all_gather_objects(obj, pickle=True)

    def barrier(self, timeout: float = 30.0) -> None:
        """Blocks until all ranks have called it."""
        if not self.collective.ibarrier().wait(timeout):
            raise TimeoutError(f"not all ranks came to the barrier within {timeout} s")


@dataclass(frozen=True)
class QueueHandle:
    """What a process needs to read a queue. It can be pickled."""

    remote_handle: bytes
    local_reader_ranks: list[int]


def _collective_of(pg: Any) -> crossrank.Collective:
    """Returns a group with the ranks of a process group of torch, of ours, or of vLLM."""
    if isinstance(pg, StatelessProcessGroup):
        return pg.collective
    if isinstance(pg, dist.ProcessGroup):
        return groups.group_of(pg)
    job = pg.broadcast_obj(secrets.token_hex(16) if pg.rank == 0 else None, 0)
    return crossrank.connect(rank=pg.rank, world_size=pg.world_size, job_id=job)


class MessageQueue:
    """A queue from one rank to all others. Objects arrive in order, each at every reader."""

    def __init__(self, queue: crossrank.MessageQueue, handle: QueueHandle | None = None) -> None:
        self._queue = queue
        self.handle = handle
        self.shutting_down = False
        self._is_writer = queue.is_writer
        self._is_local_reader = not self._is_writer
        self._is_remote_reader = False

    @staticmethod
    def create_from_process_group(
        pg: Any,
        max_chunk_bytes: int,
        max_chunks: int,
        writer_rank: int = 0,
        external_writer_handle: QueueHandle | None = None,
        blocking: bool = True,
    ) -> MessageQueue:
        """Makes a queue between the ranks of a group. Collective. `blocking` is not needed: the queue is ready at once.

        `max_chunk_bytes` is the length up to which a message takes the fast path; longer ones are sent all the same.
        With `external_writer_handle` all ranks of the group read a queue whose writer is outside.
        """
        del blocking
        collective = _collective_of(pg)
        if external_writer_handle is not None:
            return MessageQueue.create_from_handle(external_writer_handle, collective.rank)
        queue = crossrank.MessageQueue.create(
            collective, writer_rank=writer_rank, chunk_bytes=max_chunk_bytes, chunks=max_chunks
        )
        readers = [rank for rank in range(collective.world_size) if rank != writer_rank]
        return MessageQueue(queue, QueueHandle(queue.handle(), readers) if collective.rank == writer_rank else None)

    @staticmethod
    def create_from_handle(handle: QueueHandle, rank: int) -> MessageQueue:
        """Attaches a reader to a queue of another process of this node."""
        return MessageQueue(
            crossrank.MessageQueue.attach(handle.remote_handle, reader=handle.local_reader_ranks.index(rank)), handle
        )

    def export_handle(self) -> QueueHandle:
        """Returns the handle with which others can attach."""
        if self.handle is None:
            raise crossrank.UsageError("only the writer of a queue can export its handle")
        return self.handle

    def wait_until_ready(self) -> None:
        """Returns at once: a queue is ready when it has been made."""

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Sends an object. `TimeoutError` when the slowest reader has not read a message within `timeout` seconds."""
        self._queue.enqueue_bytes(pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL), timeout=timeout)

    def dequeue(self, timeout: float | None = None, cancel: Any = None, indefinite: bool = False) -> Any:
        """Returns the next object. `TimeoutError` when none came within `timeout` seconds.

        After `shutdown`, here or at the writer, it returns None. `cancel` is an event: when it is set, the wait ends with
        `RuntimeError`. `indefinite` waits without a limit.
        """
        message = self._wait(timeout, cancel, indefinite)
        return None if message is None else pickle.loads(message)

    def _wait(self, timeout: float | None, cancel: Any, indefinite: bool) -> bytes | None:
        if self.shutting_down:
            return None
        try:
            if cancel is None:
                return self._queue.dequeue_bytes(timeout=float("inf") if indefinite else timeout)
            while True:
                if cancel.is_set():
                    raise RuntimeError("the wait for a message was cancelled")
                step = 0.05 if timeout is None else min(0.05, timeout)
                if self._queue.wait_for(step):
                    return self._queue.dequeue_bytes(timeout=timeout)
                if timeout is not None:
                    timeout -= step
                    if timeout <= 0:
                        raise TimeoutError("no message came in time")
        except crossrank.CancelledError:
            if not self.shutting_down:
                raise
            return None

    def broadcast_object(self, obj: Any = None) -> Any:
        """Sends `obj` on the writer, and returns the next object on readers."""
        if self._is_writer:
            self.enqueue(obj)
            return obj
        return self.dequeue()

    def shutdown(self) -> None:
        """Ends the waits of this process on the queue. Can be called by another thread."""
        self.shutting_down = True
        if self._is_writer:
            self._queue.close()
        else:
            self._queue.cancel()
