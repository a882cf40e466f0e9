"""The parameters of a module in the shared memory of a node."""

from __future__ import annotations

import torch
import torch.distributed as dist

import crossrank
from crossrank.compat import groups


def share_memory(module: torch.nn.Module, group: crossrank.Collective | dist.ProcessGroup | None = None) -> torch.nn.Module:
    """Moves the parameters and buffers of a module into memory that the ranks of a group share, as `Module.share_memory` does.

    A gather over this group then copies nothing of such a tensor, or of a contiguous part of it: the receiver maps it.
    `group` is a group of crossrank or of torch, and all ranks of torch by default. Copies each byte once. Parameters stay
    the same objects, so optimizers and hooks keep them, and those that share memory still do. The memory is freed with the
    last tensor that uses it.

    Change no parameter while another rank is in the range of a gather. A tensor that the receiver holds longer shows later
    changes: clone it to keep its values.

    Raises `UsageError` for tensors that are not on the CPU, sparse, or sharded by DTensor, and `UnavailableError` if the
    shared memory does not suffice. The module is unchanged after an error. Returns the module.

    >>> crossrank.torch.share_memory(model)
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        kind = None
        if hasattr(tensor, "to_local"):
            kind = "a DTensor"
        elif tensor.device.type != "cpu" or tensor.layout != torch.strided:
            kind = f"{tensor.layout} on {tensor.device}"
        elif tensor.is_conj() or tensor.is_neg():
            kind = "a conjugated or negated view"
        if kind is not None:
            raise crossrank.UsageError(f"share_memory: expected a dense CPU tensor, got {name}, which is {kind}")
    collective = group if isinstance(group, crossrank.Collective) else groups.group_of(group)
    workspace = crossrank.SharedMemoryWorkspace(collective)
    moved: dict[int, torch.Tensor] = {}
    for _, tensor in named:
        storage = tensor.untyped_storage()
        if storage.nbytes() > 0 and storage.data_ptr() not in moved:
            values = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            moved[storage.data_ptr()] = workspace.empty((storage.nbytes(),), "U8").torch().copy_(values)
    for _, tensor in named:
        shared = moved.get(tensor.untyped_storage().data_ptr())
        if shared is not None:
            place = (tensor.storage_offset(), tensor.shape, tensor.stride())
            tensor.data = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(shared.untyped_storage(), *place)
    return module
