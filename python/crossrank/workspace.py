"""Workspaces: places in which a rank leaves its config and weights for others."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Literal, Self

from . import _core
from ._types import Device, Shape, Weights
from .collective import Collective, native_of
from .tensor import Tensor

State = tuple[Any, dict[str, Tensor]]


class NFSWorkspace:
    """Exchanges configs and weights through files in a shared directory.

    Creates the directory and deletes the states that earlier processes of this rank left there. The files outlive the process.
    A `with` block removes this rank's files at its end: let the others read them first, and call a barrier. It removes
    nothing for a workspace that `open` has made.

    Ctrl-C ends a call even if the file system does not answer. After an interrupted write or `clean` every further call raises
    `UsageError`, because the write continues until the file system answers.

    >>> workspace = crossrank.NFSWorkspace("/shared/job", rank=0)
    >>> workspace.write_configs_and_weights({"step": 7}, {"w": weight})
    """

    __slots__ = ("_native", "_writes")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int | None = None,
        existing: Literal["remove", "keep", "remove_killed", "force"] = "remove",
        format: Literal["safetensors", "torch"] = "safetensors",
        world_size: int | None = None,
    ) -> None:
        self._native = _core.make_nfs_workspace(os.fspath(path), rank, existing, format, world_size)
        self._writes = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._writes:
            self.clean()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Opens an existing directory for reading; deletes nothing.

        >>> workspace = crossrank.NFSWorkspace.open("/shared/job")
        """
        workspace = cls.__new__(cls)
        workspace._native = _core.open_nfs_workspace(os.fspath(path))
        workspace._writes = False
        return workspace

    @property
    def path(self) -> str:
        """The directory."""
        return os.fspath(self._native.path())

    def write_configs_and_weights(self, config: Any, weights: Weights) -> None:
        """Publishes this rank's state as a new file, complete and durable or not at all.

        >>> workspace.write_configs_and_weights({"step": 7}, {"w": weight})
        """
        self._native.write(config, dict(weights))

    def read_configs_and_weights_from_rank(
        self, rank: int, *, damaged: Literal["refuse", "take_older"] = "refuse", to: Device = "cpu"
    ) -> State | None:
        """Returns config and weights of a rank, the weights on the device `to`; None when it never wrote.

        >>> config, weights = workspace.read_configs_and_weights_from_rank(1)
        """
        return self._native.read(rank, damaged, to)

    def clean(self) -> None:
        """Removes all files of this rank.

        >>> workspace.clean()
        """
        self._native.clean()


class SharedMemoryWorkspace:
    """Exchanges configs and weights through the shared memory of a node.

    A `with` block withdraws this rank's state at its end. States that others have read stay valid.

    >>> workspace = crossrank.SharedMemoryWorkspace(world)
    >>> weight = workspace.empty((1024, 1024), "F32")
    """

    __slots__ = ("_native",)

    def __init__(self, group: Collective) -> None:
        self._native = _core.SharedMemoryWorkspace(native_of(group))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.clean()

    def empty(self, shape: Shape, dtype: str, *, device: Device = "cpu") -> Tensor:
        """Returns a tensor that other ranks receive without a copy, on a GPU with `in_place`. Its contents are undetermined.

        >>> workspace.empty((2, 3), "F32").numpy()[:] = 1
        """
        return self._native.empty(shape, dtype, device)

    def zeros(self, shape: Shape, dtype: str) -> Tensor:
        """Does the same on the CPU, with zero bytes.

        >>> weight = workspace.zeros((2, 3), "BF16")
        """
        return self._native.zeros(shape, dtype)

    def write_configs_and_weights(self, config: Any, weights: Weights, *, in_place: bool = False) -> None:
        """Publishes this rank's state in place of the previous one.

        With `in_place`, `shareable` tensors on a GPU are not copied. They cannot be written until another state replaces this
        one and the last reader has dropped them.

        >>> workspace.write_configs_and_weights({"step": 7}, {"w": weight})
        """
        self._native.write(config, dict(weights), in_place)

    def read_configs_and_weights_from_rank(self, rank: int, *, to: Device = "cpu", in_place: bool = False) -> State | None:
        """Returns config and weights of a rank; None when it never wrote.

        Nothing is copied, unless `to` is a GPU. With `in_place`, tensors that were written in place are views on their GPU.

        >>> config, weights = workspace.read_configs_and_weights_from_rank(1)
        """
        return self._native.read(rank, to, in_place)

    def clean(self) -> None:
        """Withdraws this rank's state. States that others have read stay valid.

        >>> workspace.clean()
        """
        self._native.clean()

    def trim(self) -> int:
        """Gives unused memory of this rank back to the system. Returns the number of bytes.

        >>> freed = workspace.trim()
        """
        return self._native.trim()
