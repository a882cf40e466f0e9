"""GPUs: the one of this process, the streams in whose order calls run, and memory that is kept for reuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from os.path import exists, join
from typing import Any

from . import _core
from ._types import Device


def _prefer_nccl_of_packages() -> None:
    """Lets the library open the NCCL that PyTorch will load.

    A process has only one library of that name, so that another one would break a later `import torch`.
    """
    spec = find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = join(folder, "nccl", "lib", "libnccl.so.2")
        if exists(path):
            return _core.prefer_nccl(path)
    return None


_prefer_nccl_of_packages()


def default_device() -> str:
    """Returns the GPU of this process, such as "cuda:1"; "cpu" without a GPU or a driver.

    Its number is the rank of this process on its node, modulo the number of GPUs.

    >>> weight = crossrank.empty((2, 3), "BF16", device=crossrank.default_device())
    """
    return _core.default_device()


@contextmanager
def stream(handle: Any, *, device: Device = None) -> Iterator[None]:
    """Makes a stream the current one of a GPU for crossrank's calls of this thread, in a `with` block.

    `handle` is a `CUstream` as an integer, 0 for the default stream, or an object with `__cuda_stream__`, such as a stream of
    torch or of cuda.core. `device` is the GPU of the stream: by default that of torch's stream, else the GPU of this process.
    Blocks nest. The stream must live as long as the tensors that were made or used on it. Outside of such a block, calls run on
    torch's current stream, and on the default stream where torch uses no GPU.

    Raises `UsageError` for the per-thread default stream, which is another stream in each thread.

    >>> with crossrank.stream(cupy_stream.ptr, device="cuda:0"):
    ...     world.all_reduce(gradient)
    """
    number = handle.__cuda_stream__()[1] if hasattr(handle, "__cuda_stream__") else handle
    if device is None:
        device = f"cuda:{handle.device_index}" if hasattr(handle, "device_index") else "cuda"
    _core.push_stream(device, number)
    try:
        yield
    finally:
        _core.pop_stream()


def trim(device: Device = "cuda") -> None:
    """Gives the memory of a GPU that crossrank keeps for reuse back to the driver. The pool keeps up to 1 GiB.

    Also drops torch's tensors of calls whose work has ended. Other calls on the GPU do that too.

    >>> crossrank.trim()
    """
    _core.trim(device)
