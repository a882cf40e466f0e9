"""Gathers: one tensor, state dict or state of each rank, on the first rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from . import _core
from ._types import Device, TensorLike, Timeout, Weights, seconds
from .collective import Collective, native_of
from .tensor import Tensor
from .workspace import NFSWorkspace, SharedMemoryWorkspace

Item = TypeVar("Item")


@dataclass(frozen=True)
class RankedState:
    """The config and weights of one rank of the job."""

    rank: int
    config: Any
    weights: dict[str, Tensor]


class CollectiveRange(Generic[Item]):
    """The items of a gather, one per rank. Empty except on the receiver.

    Use it in a `with` block, which closes it: the other ranks wait until the receiver has closed. An exception in the
    block aborts the group with its text. Iterating to the end outside of a `with` block closes it as well.

    >>> with crossrank.get_tensors_parallel(weight, group=world) as shards:
    ...     for shard in shards:
    ...         merge(shard)
    """

    __slots__ = ("_entered", "_native")

    def __init__(self, native: Any) -> None:
        self._native = native
        self._entered = False

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._native.abort(error)

    def __len__(self) -> int:
        return self._native.size()

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        size = len(self)
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(size))]
        if not -size <= index < size:
            raise IndexError(f"the range has {size} items")
        return _item(self._native.at(index % size))

    def __iter__(self) -> Iterator[Item]:
        for index in range(len(self)):
            yield self[index]
        if not self._entered:
            self.close()

    @property
    def is_receiver(self) -> bool:
        """Whether this rank receives the items."""
        return self._native.is_receiver()

    def take(self) -> list[Item]:
        """Receives all items, closes the range and returns them.

        >>> shards = crossrank.get_tensors_parallel(weight, group=world).take()
        """
        return [_item(item) for item in self._native.take()]

    def close(self) -> None:
        """Ends the range, and raises errors of other ranks.

        >>> shards.close()
        """
        self._native.close()


def _item(native: Any) -> Any:
    return RankedState(*native) if isinstance(native, tuple) else native


def _options(
    ranks: Sequence[int] | None,
    group: Collective,
    workspace: NFSWorkspace | SharedMemoryWorkspace | None,
    workspace_path: str | os.PathLike[str],
    release: str,
    timeout: Timeout | None,
    files: str,
    to: Device,
    in_place: bool,
) -> tuple[Any, ...]:
    """Returns the arguments that are the same for tensors and for configs, as the core takes them."""
    return (
        None if ranks is None else list(ranks),
        native_of(group),
        None if workspace is None else workspace._native,
        os.fspath(workspace_path),
        release,
        seconds(timeout),
        files,
        to,
        in_place,
    )


def get_tensors_parallel(
    tensor: TensorLike | Weights,
    ranks: Sequence[int] | None = None,
    *,
    group: Collective,
    workspace: NFSWorkspace | SharedMemoryWorkspace | None = None,
    workspace_path: str | os.PathLike[str] = "",
    release: Literal["strict", "lazy"] = "strict",
    timeout: Timeout | None = None,
    files: Literal["remove", "keep"] = "remove",
    to: Device = "cpu",
    in_place: bool = False,
) -> CollectiveRange[Any]:
    """Gathers one tensor, or a dict of tensors, of each listed rank of the job on the first of them.

    Without a workspace the tensors go through shared memory: each is copied once, by its owner. All ranks of the group
    call it. Tensors of other ranks are read-only views of their owner's memory. The receiver's own item is the tensor that it
    passed: writing to it changes that tensor.

    `to` is the device where the receiver gets all tensors, its own too: a tensor on a GPU is copied to the CPU by default. With
    `in_place`, `shareable` tensors stay on their GPU, and the receiver gets views of their owner's memory.

    >>> with crossrank.get_tensors_parallel(weight, group=world) as shards:
    ...     merged = crossrank.concat(shards)
    """
    native = _core.get_tensors_parallel(
        tensor if isinstance(tensor, dict) or not hasattr(tensor, "items") else dict(tensor),
        *_options(ranks, group, workspace, workspace_path, release, timeout, files, to, in_place),
    )
    return CollectiveRange(native)


def get_configs_parallel(
    config: Any,
    weights: Weights | None = None,
    ranks: Sequence[int] | None = None,
    *,
    group: Collective,
    workspace: NFSWorkspace | SharedMemoryWorkspace | None = None,
    workspace_path: str | os.PathLike[str] = "",
    release: Literal["strict", "lazy"] = "strict",
    timeout: Timeout | None = None,
    files: Literal["remove", "keep"] = "remove",
    to: Device = "cpu",
    in_place: bool = False,
) -> CollectiveRange[RankedState]:
    """Gathers config and weights of each listed rank of the job on the first of them.

    Weights of other ranks are read-only, and the receiver's own are those that it passed, as in `get_tensors_parallel`.
    `to` and `in_place` are for weights on GPUs, as there.

    >>> with crossrank.get_configs_parallel({"layer": 3}, {"w": weight}, group=world) as states:
    ...     for state in states:
    ...         print(state.rank, state.config, list(state.weights))
    """
    native = _core.get_configs_parallel(
        config,
        dict(weights or {}),
        *_options(ranks, group, workspace, workspace_path, release, timeout, files, to, in_place),
    )
    return CollectiveRange(native)
