"""Tensors, and their conversion to numpy and torch, which are imported when a tensor of theirs is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _core
from ._core import Tensor
from ._types import Device, Shape, TensorLike
from .errors import UsageError

if TYPE_CHECKING:
    import numpy
    import torch

# safetensors name -> names of numpy or ml_dtypes, and of torch
_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "I32": "int32",
    "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_TORCH = {**_NUMPY, **_ML_DTYPES, "F4": "float4_e2m1fn_x2"}
_ML_NAMES = {name: dtype for dtype, name in _ML_DTYPES.items()}


def as_tensor(tensor: TensorLike) -> Tensor:
    """Returns a crossrank tensor of the same memory, on the CPU or a GPU. A tensor that is not contiguous is copied instead:
    writing to the result does not change it.

    Do not resize the storage of a torch tensor while the view lives, as `resize_` and FSDP do: torch frees that memory. Torch
    packs two values of F4 in one element, so the view's last dimension is twice as long.

    >>> crossrank.as_tensor(numpy.zeros(3)).dtype
    'F64'
    """
    return _core.as_tensor(tensor)


def empty(shape: Shape, dtype: str, *, device: Device = "cpu", shareable: bool = False) -> Tensor:
    """Returns a writable tensor whose contents are undetermined.

    `device` is "cpu", a GPU such as "cuda:1", or "cuda" for the GPU of this process. A GPU's memory comes from a pool in the
    order of its current stream; `shareable` memory comes from the driver, and gathers with `in_place` can hand it over.

    >>> crossrank.empty((2, 3), "BF16").numel()
    6
    """
    return _core.empty(shape, dtype, device, shareable)


def zeros(shape: Shape, dtype: str, *, device: Device = "cpu", shareable: bool = False) -> Tensor:
    """Returns a writable tensor of zero bytes; the other arguments as for `empty`.

    >>> crossrank.zeros((2, 3), "F32").numpy().sum()
    0.0
    """
    return _core.zeros(shape, dtype, device, shareable)


def concat(parts: Iterable[TensorLike], *, dim: int = 0) -> Tensor:
    """Joins tensors along a dimension. Copies each byte once.

    >>> weight = crossrank.concat(shards, dim=0)
    """
    return _core.concat(list(parts), dim)


def slice(tensor: TensorLike, dim: int, begin: int, length: int) -> Tensor:
    """Copies `length` entries of a dimension, from `begin` on. `Tensor.narrow` does not copy, where that is possible.

    >>> columns = crossrank.slice(weight, 1, 0, 1024)
    """
    return _core.slice(tensor, dim, begin, length)


def _from_bytes(data: bytes, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Restores a tensor from its pickle, in writable memory of its own."""
    tensor = empty(shape, dtype)
    if data:
        tensor.copy_from(_core.view_as(_core.as_tensor(data), shape, dtype))
    return tensor


def _to_numpy(tensor: Tensor) -> numpy.ndarray:
    import numpy

    if tensor.device != "cpu":
        raise UsageError(f"Tensor.numpy: numpy has no tensors on {tensor.device}. Use tensor.cpu().numpy()")
    if tensor.dtype in _NUMPY:
        dtype = numpy.dtype(_NUMPY[tensor.dtype])
    elif tensor.dtype in _ML_DTYPES:
        try:
            import ml_dtypes  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UsageError(
                f"Tensor.numpy: numpy has no {tensor.dtype}. Install ml_dtypes, or use tensor.torch() or tobytes()"
            ) from None
        dtype = numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[tensor.dtype]))
    else:
        raise UsageError(f"Tensor.numpy: numpy has no {tensor.dtype}. Use tensor.tobytes()")
    if tensor.nbytes == 0:
        return numpy.empty(tensor.shape, dtype)
    # The buffer protocol does not have every dtype.
    data = memoryview(_core.view_as(tensor, (tensor.nbytes,), "U8"))
    return numpy.frombuffer(data, dtype=dtype).reshape(tensor.shape)


def _to_torch(tensor: Tensor) -> torch.Tensor:
    import torch

    dtype = getattr(torch, _TORCH.get(tensor.dtype, ""), None)
    if dtype is None:
        raise UsageError(f"Tensor.torch: this torch has no {tensor.dtype}. Use tensor.tobytes()")
    shape = tensor.shape
    if tensor.dtype == "F4":  # an element of torch is two values
        *outer, last = shape
        if last % 2 != 0:
            raise UsageError(f"Tensor.torch: torch packs F4 in pairs, and the last dimension has {last}. Use tensor.tobytes()")
        shape = (*outer, last // 2)
    if tensor.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=tensor.device)
    if tensor.device != "cpu":
        own = tensor.clone() if tensor.readonly else tensor
        # Torch's DLPack does not have every dtype.
        return torch.from_dlpack(_core.view_as(own, (own.nbytes,), "U8")).view(dtype).reshape(shape)
    own = tensor.clone_on_write() if tensor.readonly else tensor
    return torch.frombuffer(own, dtype=dtype).reshape(shape)


def _bits_of_array(array: Any) -> tuple[Any, str] | None:
    """Returns an array of a dtype of ml_dtypes as integers, and the safetensors name of its dtype."""
    name = _ML_NAMES.get(getattr(array.dtype, "name", ""))
    if name is None:
        return None
    return array.view(f"uint{8 * array.dtype.itemsize}"), name
