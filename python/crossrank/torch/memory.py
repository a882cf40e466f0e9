"""The parameters of a module in the shared memory of a node."""

from __future__ import annotations

import torch
import torch.distributed as dist

import crossrank

from ..compat import groups


def share_memory(module: torch.nn.Module, group: crossrank.Collective | dist.ProcessGroup | None = None) -> torch.nn.Module:
    """Moves the parameters and buffers of a module into memory that the ranks of a group share, as `Module.share_memory` does.

    A gather over this group then copies nothing of such a tensor, or of a contiguous part of it: the receiver maps it.
    `group` is a group of crossrank or of torch, and all ranks of torch by default. Copies each byte once. Parameters stay
    the same objects, so optimizers and hooks keep them, and tied parameters stay tied. The memory is freed with the last
    tensor that uses it.

    Change no parameter while another rank is in the range of a gather. A tensor that the receiver holds longer shows later
    changes: clone it to keep its values.

    Raises `UsageError` for tensors that are not on the CPU, sparse, or sharded by DTensor, and `UnavailableError` if the
    shared memory does not suffice. The module is unchanged after an error. Returns the module.

        crossrank.torch.share_memory(model)
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or hasattr(tensor, "to_local"):
            kind = "a DTensor" if hasattr(tensor, "to_local") else f"{tensor.layout} on {tensor.device}"
            raise crossrank.UsageError(
                f"share_memory: expected a dense CPU tensor, got {name}, which is {kind}; hint: move it to the CPU first"
            )
    collective = group if isinstance(group, crossrank.Collective) else groups.group_of(group)
    workspace = crossrank.SharedMemoryWorkspace(collective)
    moved: dict[tuple[object, ...], torch.Tensor] = {}
    for _, tensor in named:
        tied = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tied not in moved:
            values = tensor.detach().contiguous()
            shared = workspace.empty(tuple(tensor.shape), crossrank.as_tensor(values).dtype).torch()
            moved[tied] = shared.copy_(values)
    for _, tensor in named:
        tensor.data = moved[tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()]
    return module
