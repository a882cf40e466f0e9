"""Ranks as a grid with named axes."""

from __future__ import annotations

from collections.abc import Mapping

from . import _core
from .collective import Collective


class Mesh:
    """The ranks of a group as a grid; the last axis varies fastest. All ranks make it together.

    >>> mesh = crossrank.Mesh(world, {"dp": 2, "tp": 2})
    >>> mesh["tp"].all_reduce(partial)
    """

    __slots__ = ("_native",)

    def __init__(self, world: Collective, axes: Mapping[str, int]) -> None:
        self._native = _core.make_mesh(world._native, list(axes.items()))

    def __getitem__(self, axis: str) -> Collective:
        """Returns the group along an axis that holds this rank."""
        return Collective(self._native.group(axis))

    def groups(self, axis: str) -> list[list[int]]:
        """Returns all groups along an axis as ranks of the world.

        >>> mesh.groups("tp")
        """
        return self._native.groups(axis)

    def coordinate(self, axis: str) -> int:
        """Returns this rank's place along an axis.

        >>> mesh.coordinate("tp")
        """
        return self._native.coordinate(axis)
