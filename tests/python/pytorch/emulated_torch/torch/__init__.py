"""A stand-in for torch whose CUDA tensors are in the memory of the emulated driver.

It has the attributes of torch that crossrank reads, and behaves as torch does in two respects: work goes to torch's current
stream, and the allocator gives the memory of a dropped tensor to the next one of the same stream at once.
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

from . import cuda, distributed
from .cuda import check, driver

__all__ = ["Tensor", "cuda", "distributed", "empty", "from_dlpack", "frombuffer", "full"]


class dtype:
    def __init__(self, name: str, itemsize: int, dlpack: tuple[int, int], format: str) -> None:
        self.name, self.itemsize, self.dlpack, self.format = name, itemsize, dlpack, format

    def __repr__(self) -> str:
        return f"torch.{self.name}"


uint8 = dtype("uint8", 1, (1, 8), "B")
float32 = dtype("float32", 4, (2, 32), "f")
strided = object()


class device:
    def __init__(self, kind: Any, index: int | None = None) -> None:
        name = str(kind)
        self.type, _, number = name.partition(":")
        self.index = int(number) if number else index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Storage:
    """Memory that tensors share."""

    def __init__(self, nbytes: int, where: device, borrowed: Any = None) -> None:
        self.nbytes, self.where, self.borrowed = nbytes, where, borrowed
        self.stream = None
        if borrowed is not None:
            self.address = borrowed[0]
        elif where.type == "cuda":
            self.stream = cuda.current_stream(where.index)
            self.address = cuda.allocate(nbytes, where.index, self.stream)
        else:
            self.memory = ctypes.create_string_buffer(max(nbytes, 1))
            self.address = ctypes.addressof(self.memory)

    def __del__(self) -> None:
        if self.borrowed is not None:
            self.borrowed[1]()
        elif self.stream is not None:
            cuda.reuse(self.address, self.nbytes, self.where.index, self.stream)


class Tensor:
    layout = strided
    is_nested = False

    def __init__(self, storage: Storage, dtype: dtype, shape: tuple[int, ...]) -> None:
        self._storage, self.dtype, self.shape = storage, dtype, shape

    device = property(lambda self: self._storage.where)
    is_cpu = property(lambda self: self.device.type == "cpu")
    is_cuda = property(lambda self: self.device.type == "cuda")

    def get_device(self) -> int:
        return self.device.index if self.is_cuda else -1

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> Tensor:
        return self

    def detach(self) -> Tensor:
        return Tensor(self._storage, self.dtype, self.shape)

    def data_ptr(self) -> int:
        return self._storage.address

    def untyped_storage(self) -> Storage:
        return self._storage

    def numel(self) -> int:
        return math.prod(self.shape)

    def view(self, dtype: dtype) -> Tensor:
        *outer, last = self.shape
        return Tensor(self._storage, dtype, (*outer, last * self.dtype.itemsize // dtype.itemsize))

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self._storage, self.dtype, tuple(shape))

    def fill_(self, value: float) -> Tensor:
        """Enqueues the fill on torch's current stream."""
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        with cuda.context(self.device.index) as stream:
            check(driver.cuMemsetD32Async(ctypes.c_uint64(self.data_ptr()), bits, ctypes.c_size_t(self.numel()), stream))
        return self

    def _copied(self, where: device) -> Tensor:
        copy = empty(self.shape, dtype=self.dtype, device=where)
        to, source = ctypes.c_uint64(copy.data_ptr()), ctypes.c_uint64(self.data_ptr())
        nbytes = ctypes.c_size_t(self._storage.nbytes)
        index = self.device.index if self.is_cuda else where.index
        with cuda.context(index) as stream:
            check(driver.cuMemcpyAsync(to, source, nbytes, stream))
            if where.type == "cpu":
                check(driver.cuStreamSynchronize(stream))
        return copy

    def to(self, where: Any) -> Tensor:
        where = where if isinstance(where, device) else device(where)
        return self if str(where) == str(self.device) else self._copied(where)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def clone(self) -> Tensor:
        return self._copied(self.device)

    def tolist(self) -> list[float]:
        """Waits for torch's current stream, and for no other one."""
        host = self.cpu()
        count = self.numel()
        return list(
            struct.unpack(f"<{count}{self.dtype.format}", ctypes.string_at(host.data_ptr(), count * self.dtype.itemsize))
        )


def empty(shape: Any, *, dtype: dtype = float32, device: Any = "cpu") -> Tensor:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    where = globals()["device"](device)
    if where.type == "cuda" and where.index is None:
        where.index = 0
    return Tensor(Storage(math.prod(shape) * dtype.itemsize, where), dtype, shape)


def full(shape: Any, value: float, *, device: Any) -> Tensor:
    return empty(shape, device=device).fill_(value)


def frombuffer(buffer: Any, *, dtype: dtype) -> Tensor:
    view = memoryview(buffer).cast("B")
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    return Tensor(Storage(view.nbytes, device("cpu"), (address, view.__len__)), dtype, (view.nbytes // dtype.itemsize,))


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]  # fmt: skip


def from_dlpack(exporter: Any) -> Tensor:
    """Takes a tensor of a GPU as torch does: with its current stream, which the exporter lets wait."""
    kind, index = exporter.__dlpack_device__()
    assert kind == 2, "the stand-in takes tensors of GPUs only"
    stream = cuda.current_stream(index).cuda_stream
    capsule = exporter.__dlpack__(stream=stream or 1, max_version=(1, 0))
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    api.PyCapsule_SetName(capsule, _USED)
    managed = _Managed.from_address(address)
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    tensor = managed.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    kind = next(each for each in (uint8, float32) if each.dlpack == (tensor.code, tensor.bits))
    borrowed = (tensor.data + tensor.byte_offset, lambda: delete(address))
    return Tensor(Storage(math.prod(shape) * kind.itemsize, device("cuda", index), borrowed), kind, shape)


_USED = b"used_dltensor_versioned"  # a capsule does not copy its name
