"""Queues from one rank to all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from . import _core
from ._types import TensorLike, Timeout, seconds
from .collective import Collective, native_of, native_or_none
from .tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class MessageQueue:
    """One endpoint of a queue: one rank writes, and every reader gets every message, in order.

    A timeout of None is the group's, and `math.inf` is no limit. A message of JSON values and tensors is a dict; bytes and
    tensors have calls of their own. Reading returns None after the last message of a closed writer.

    A `with` block closes its endpoint. An exception in the block drops the endpoint instead: the other endpoints get a
    `PeerLostError`.

    >>> queue = crossrank.MessageQueue.create(world)
    >>> if queue.is_writer:
    ...     queue.enqueue_dict({"step": 7, "cache": cache})
    ...     queue.close()
    ... else:
    ...     message = queue.dequeue_dict(timeout=10)
    """

    __slots__ = ("_native",)

    def __init__(self, native: _core.MessageQueue) -> None:
        self._native = native

    @classmethod
    def create(
        cls,
        group: Collective,
        *,
        writer_rank: int = 0,
        chunk_bytes: int = 4 << 20,
        chunks: int = 6,
        name: str = "queue",
        warn_every: Timeout = 60.0,
    ) -> Self:
        """Makes a queue from one rank to all others of the group. Collective.

        A wait logs a warning every `warn_every` seconds; 0 means none.

        >>> queue = crossrank.MessageQueue.create(world, writer_rank=1)
        """
        every = seconds(warn_every) or 0.0
        return cls(_core.create_queue(native_of(group), writer_rank, chunk_bytes, chunks, name, every))

    @classmethod
    def create_writer(
        cls,
        group: Collective,
        *,
        readers: int,
        chunk_bytes: int = 4 << 20,
        chunks: int = 6,
        name: str = "queue",
        warn_every: Timeout = 60.0,
    ) -> Self:
        """Makes the writing endpoint of a queue. Readers on this node attach by its handle. `warn_every` as in `create`.

        >>> queue = crossrank.MessageQueue.create_writer(world, readers=2)
        """
        every = seconds(warn_every) or 0.0
        return cls(_core.create_queue_writer(native_of(group), readers, chunk_bytes, chunks, name, every))

    @classmethod
    def attach(cls, handle: bytes, *, reader: int, group: Collective | None = None) -> Self:
        """Attaches to a queue by its handle, as reader number `reader`.

        A rank that is a thread passes its `group`, by which the library knows the rank.

        >>> queue = crossrank.MessageQueue.attach(handle, reader=0)
        """
        return cls(_core.attach_queue(handle, reader, native_or_none(group)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._native = _core.MessageQueue()

    @property
    def is_writer(self) -> bool:
        """Whether this endpoint writes."""
        return self._native.is_writer()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._native.name()

    @property
    def messages(self) -> int:
        """How many messages this endpoint has written or read."""
        return self._native.messages()

    def handle(self) -> bytes:
        """Returns bytes by which readers on this node attach.

        >>> world.send_object(queue.handle(), dst=1)
        """
        return self._native.handle()

    def enqueue_bytes(self, message: bytes, *, timeout: Timeout | None = None) -> None:
        """Writes bytes.

        >>> queue.enqueue_bytes(b"request")
        """
        self._native.enqueue_bytes(message, seconds(timeout))

    def enqueue_parts(self, parts: Iterable[Buffer], *, timeout: Timeout | None = None) -> None:
        """Writes one message of several bytes-like parts, without joining them first.

        >>> queue.enqueue_parts([header, memoryview(array)])
        """
        self._native.enqueue_parts(list(parts), seconds(timeout))

    def read_bytes(self, read: Callable[[memoryview], T], *, timeout: Timeout | None = None) -> T | None:
        """Returns what `read` makes of the next message, without copying it first.

        `read` gets a read-only view, which ends with its call. A message is consumed even if `read` raises. A `read` that
        keeps a view of the view raises `BufferError`: those bytes change.

        >>> message = queue.read_bytes(pickle.loads)
        """
        return self._native.read_bytes(read, seconds(timeout))

    def dequeue_bytes(self, *, timeout: Timeout | None = None) -> bytes | None:
        """Returns the bytes of the next message.

        >>> message = queue.dequeue_bytes(timeout=10)
        """
        return self._native.dequeue_bytes(seconds(timeout))

    def enqueue_dict(self, message: dict[str, Any], *, timeout: Timeout | None = None) -> None:
        """Writes a dict of tensors, JSON values, lists and dicts.

        >>> queue.enqueue_dict({"step": 7, "cache": cache})
        """
        self._native.enqueue_dict(message, seconds(timeout))

    def dequeue_dict(self, *, timeout: Timeout | None = None) -> dict[str, Any] | None:
        """Returns the dict of the next message.

        >>> message = queue.dequeue_dict(timeout=10)
        """
        return self._native.dequeue_dict(seconds(timeout))

    def enqueue_tensor(self, tensor: TensorLike, *, timeout: Timeout | None = None) -> None:
        """Writes a tensor.

        >>> queue.enqueue_tensor(activations)
        """
        self._native.enqueue_tensor(tensor, seconds(timeout))

    def dequeue_tensor(self, *, timeout: Timeout | None = None) -> Tensor | None:
        """Returns the tensor of the next message.

        >>> activations = queue.dequeue_tensor().torch()
        """
        return self._native.dequeue_tensor(seconds(timeout))

    def wait_for(self, timeout: Timeout) -> bool:
        """Blocks until the next call would not block. Returns False after the timeout.

        >>> ready = queue.wait_for(0.1)
        """
        return self._native.wait_for(seconds(timeout) or 0.0)

    def cancel(self) -> None:
        """Makes this endpoint's current and later calls raise `CancelledError`. Any thread may call it.

        >>> queue.cancel()
        """
        self._native.cancel()

    def close(self) -> None:
        """Closes this endpoint. Readers can still read what was written.

        >>> queue.close()
        """
        if self._native.connected():
            self._native.close()
