"""Torch's tensors as the contiguous bytes that crossrank sends, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def to_dense(tensor: Tensor) -> Tensor:
    """Returns a contiguous tensor with the same values, in the same memory where that is possible."""
    if tensor.device.type != "cpu":
        raise ValueError(
            f"the backend crossrank takes CPU tensors, and this one is on {tensor.device} "
            "(hint: use a group of another backend for it, or pass tensor.cpu())"
        )
    if tensor.is_sparse:
        raise ValueError("this operation of the backend crossrank takes dense tensors; call to_dense() first")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def bytes_of(tensor: Tensor) -> Tensor:
    """Returns the bytes of a contiguous tensor, so that every dtype can travel."""
    # A dimension of length 1 may have any stride in a contiguous tensor, which view() refuses.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


# Dtypes that are the library's as well.
_COMMON_DTYPES = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


def elements_of(tensor: Tensor) -> Tensor:
    """Returns the elements of a contiguous tensor, so that the ranks compare their dtype; the bytes of an unusual dtype."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)) if tensor.dtype in _COMMON_DTYPES else bytes_of(tensor)


def without_overlap(values: Tensor, target: Tensor) -> Tensor:
    """Returns contiguous `values`, or a copy where they share memory with the contiguous tensor `target`."""
    begin, end = values.data_ptr(), values.data_ptr() + values.numel() * values.element_size()
    target_begin, target_end = target.data_ptr(), target.data_ptr() + target.numel() * target.element_size()
    return values.clone() if begin < target_end and target_begin < end else values


def copy_back(target: Tensor, dense: Tensor) -> None:
    """Writes the values of `dense` to `target` unless they share their memory."""
    if target.data_ptr() != dense.data_ptr() or target.stride() != dense.stride():
        target.detach().copy_(dense.view(target.shape))


def joined_bytes(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the bytes of all tensors, one after the other."""
    if not tensors:
        return torch.empty(0, dtype=torch.uint8)
    return torch.cat([bytes_of(to_dense(tensor)) for tensor in tensors])


def distribute(joined: Tensor, targets: Sequence[Tensor]) -> list[Tensor]:
    """Writes consecutive bytes of `joined` to the targets."""
    begin = 0
    for target in targets:
        end = begin + target.numel() * target.element_size()
        part = joined[begin:end]
        if begin % target.element_size():
            part = part.clone()
        target.detach().copy_(part.view(target.dtype).view(target.shape))
        begin = end
    return list(targets)


def split_bytes(tensor: Tensor, sizes: Sequence[int] | None, ranks: int) -> list[int]:
    """Returns how many bytes of `tensor` belong to each rank, from its rows per rank or in equal parts."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % ranks:
            raise ValueError(f"{rows} rows cannot be divided equally between {ranks} ranks: give split sizes")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise ValueError(f"the split sizes {list(sizes)} do not divide {rows} rows between {ranks} ranks")
    row_bytes = tensor.numel() // rows * tensor.element_size() if rows else 0
    return [size * row_bytes for size in sizes]


def require_dtype(operation: str, own: Tensor, others: Iterable[Tensor]) -> None:
    """Raises unless all tensors have one dtype: ranks exchange bytes, which would be taken for values of another dtype."""
    for other in others:
        if other.dtype != own.dtype:
            raise ValueError(f"{operation} needs tensors of one dtype, and got {own.dtype} and {other.dtype}")


def require_parts(operation: str, own: Tensor, parts: Sequence[Tensor], ranks: int) -> None:
    """Raises unless `parts` has a tensor for each rank, with as many elements as `own` and of its dtype."""
    if len(parts) != ranks:
        raise ValueError(f"{operation} needs a list of {ranks} tensors, one for each rank, and this one has {len(parts)}")
    require_dtype(operation, own, parts)
    for part in parts:
        if part.numel() != own.numel():
            raise ValueError(f"{operation} needs {own.numel()} elements for each rank, and the list has {part.numel()} for one")
