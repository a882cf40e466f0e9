"""Ranks as a grid with named axes, and jobs laid out as such grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from . import _core
from ._types import TensorLike
from .collective import Collective, native_of


class Mesh:
    """The ranks of a group as a grid; the last axis varies fastest. All ranks make it together.

    >>> mesh = crossrank.Mesh(world, {"dp": 2, "tp": 2})
    >>> mesh["tp"].all_reduce(partial)
    """

    __slots__ = ("_native",)

    def __init__(self, world: Collective, axes: Mapping[str, int]) -> None:
        self._native = _core.make_mesh(world._native, list(axes.items()))

    @classmethod
    def _of(cls, native: _core.Mesh) -> Self:
        mesh = cls.__new__(cls)
        mesh._native = native
        return mesh

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


class JobCollective(Collective):
    """The group of all ranks of a job, with the job's mesh. All of `Collective` works on it as well.

    >>> job.dp_world.all_reduce(gradient, op="avg")
    """

    __slots__ = ("_job",)

    def __init__(self, native: _core.JobCollective) -> None:
        super().__init__(native.world())
        self._job = native

    @property
    def mesh(self) -> Mesh | None:
        """The mesh with the axes dp_replicate, dp_shard and tp; None for a part of a job."""
        native = self._job.mesh()
        return None if native is None else Mesh._of(native)

    @property
    def dp_rank(self) -> int:
        """This rank's place in `dp_world`."""
        return self._job.dp_rank()

    @property
    def dp_world_size(self) -> int:
        """The number of ranks in `dp_world`."""
        return self._job.dp_world_size()

    @property
    def tp_rank(self) -> int:
        """This rank's place in its tensor-parallel group."""
        return self._job.tp_rank()

    @property
    def tp_world_size(self) -> int:
        """The number of ranks in its tensor-parallel group."""
        return self._job.tp_world_size()

    @property
    def local(self) -> JobCollective:
        """The job's ranks on this node as a job of their own, with the same tensor-parallel groups."""
        return JobCollective(self._job.local())

    @property
    def tp_world(self) -> JobCollective:
        """This rank's tensor-parallel group as a job of its own."""
        return JobCollective(self._job.tp_world())

    @property
    def dp_world(self) -> Collective:
        """The group of all ranks with this rank's tensor-parallel rank."""
        return Collective(self._job.dp_world())

    def all_gather_to_list(self, outs: Sequence[TensorLike], tensor: TensorLike) -> None:
        """Fills each of `outs` with the tensor of one rank.

        >>> job.all_gather_to_list(parts, mine)
        """
        self._job.all_gather_to_list(outs, tensor)

    def close(self) -> None:
        """Runs a last barrier with the job and leaves it.

        >>> job.close()
        """
        self._job.close()


class MeshCollective(JobCollective):
    """A job laid out as (dp_replicate, dp_shard, tp) and as (nodes, local_ranks), each with the last axis fastest.

    All ranks of `world` make it together. `ranks` are those of the world that form the mesh; by default all.

    >>> job = crossrank.MeshCollective(world, tp_size=2)
    >>> job.tp_world.all_reduce(partial)
    """

    __slots__ = ()
    _job: _core.MeshCollective

    def __init__(
        self,
        world: Collective,
        *,
        tp_size: int = 1,
        sharding_world_size: int | None = None,
        local_world_size: int | None = None,
        ranks: Sequence[int] = (),
    ) -> None:
        native = native_of(world)
        super().__init__(_core.make_mesh_collective(native, tp_size, sharding_world_size, local_world_size, list(ranks)))

    @property
    def dp_mesh(self) -> Mesh:
        """The mesh (dp_replicate, dp_shard) over `dp_world`."""
        return Mesh._of(self._job.dp_mesh())

    @property
    def tp_mesh(self) -> Mesh:
        """The mesh (tp) over `tp_world`."""
        return Mesh._of(self._job.tp_mesh())

    @property
    def node_mesh(self) -> Mesh:
        """The mesh (nodes, local_ranks) over the world."""
        return Mesh._of(self._job.node_mesh())
