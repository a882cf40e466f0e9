"""Streams and memory of the emulated driver, under the names of torch.cuda."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

driver = ctypes.CDLL(os.environ["CROSSRANK_CUDA_LIBRARY"])
_NON_BLOCKING = 1

_contexts: dict[int, ctypes.c_void_p] = {}
_current = threading.local()
_free: dict[tuple[int, int, int], list[int]] = {}


def check(result: int) -> None:
    assert result == 0, f"CUDA error {result}"


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return bool(_contexts)


def _enter(index: int) -> None:
    if index not in _contexts:
        check(driver.cuInit(0))
        handle = ctypes.c_void_p()
        check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(handle), index))
        _contexts[index] = handle
    check(driver.cuCtxSetCurrent(_contexts[index]))


class Stream:
    def __init__(self, device: int, handle: int | None = None) -> None:
        self.device_index = device
        if handle is None:
            _enter(device)
            made = ctypes.c_void_p()
            check(driver.cuStreamCreate(ctypes.byref(made), _NON_BLOCKING))
            handle = made.value
        self.cuda_stream = handle or 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def synchronize(self) -> None:
        _enter(self.device_index)
        check(driver.cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)))


def current_stream(device: int) -> Stream:
    _enter(device)
    return getattr(_current, "streams", {}).get(device) or Stream(device, 0)


@contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    streams = _current.__dict__.setdefault("streams", {})
    previous = streams.get(chosen.device_index)
    streams[chosen.device_index] = chosen
    try:
        yield
    finally:
        streams[chosen.device_index] = previous


@contextmanager
def context(index: int) -> Iterator[ctypes.c_void_p]:
    """Makes the context of a GPU current, and yields the handle of torch's current stream."""
    _enter(index)
    yield ctypes.c_void_p(current_stream(index).cuda_stream)


def allocate(nbytes: int, index: int, stream: Stream) -> int:
    """Returns memory that was dropped on the same stream, else new memory."""
    dropped = _free.get((index, stream.cuda_stream, nbytes))
    if dropped:
        return dropped.pop()
    _enter(index)
    address = ctypes.c_uint64()
    check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1))))
    return address.value


def reuse(address: int, nbytes: int, index: int, stream: Stream) -> None:
    """Gives memory to the next tensor of the stream, whose work comes after that of the tensors before."""
    _free.setdefault((index, stream.cuda_stream, nbytes), []).append(address)
