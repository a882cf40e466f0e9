"""Meshes and jobs of four ranks have the groups that numpy's axes give, and helpers keep the order of the ranks."""

import crossrank
import pytest

pytest.importorskip("numpy")


def test_the_groups_of_a_mesh_are_its_lines_along_an_axis(ranks):
    ranks(
        4,
        """
import numpy
grid = numpy.arange(4).reshape(2, 2)
mesh = crossrank.Mesh(world, {"dp": 2, "tp": 2})
assert mesh.groups("tp") == grid.tolist()
assert mesh.groups("dp") == grid.T.tolist()
place = numpy.argwhere(grid == world.rank)[0].tolist()
assert [mesh.coordinate("dp"), mesh.coordinate("tp")] == place
assert mesh["tp"].ranks == grid[place[0]].tolist()
assert mesh["dp"].all_gather_objects(world.rank) == grid[:, place[1]].tolist()
for call in (lambda: mesh["pp"], lambda: mesh.groups("pp"), lambda: mesh.coordinate("pp")):
    try: call()
    except crossrank.UsageError as error: assert "pp" in str(error)
    else: raise AssertionError("there is no such axis")
""",
    )


def test_a_job_has_a_mesh_for_each_kind_of_group(ranks):
    ranks(
        4,
        """
import numpy
grid = numpy.arange(4).reshape(2, 2)
job = crossrank.MeshCollective(world, tp_size=2, sharding_world_size=2, local_world_size=2)
assert job.tp_world.ranks == job.tp_mesh["tp"].ranks == grid[world.rank // 2].tolist()
assert job.dp_world.ranks == job.dp_mesh["dp_shard"].ranks == grid[:, world.rank % 2].tolist()
assert job.dp_mesh["dp_replicate"].world_size == 1
assert [job.tp_rank, job.dp_rank] == [world.rank % 2, world.rank // 2]
assert job.node_mesh.groups("local_ranks") == grid.tolist()
assert job.node_mesh.groups("nodes") == grid.T.tolist()
assert job.node_mesh.coordinate("nodes") == world.rank // 2
assert job.node_mesh["local_ranks"].all_gather_objects(world.rank) == grid[world.rank // 2].tolist()
assert job.mesh.groups("tp") == grid.tolist()
job.close()
""",
    )


@pytest.mark.parametrize("per", ["job", "node"])
def test_zero_first_runs_the_other_ranks_after_the_first(ranks, tmp_path, per):
    ranks(
        3,
        f"""
import pathlib
cache = pathlib.Path({str(tmp_path)!r}, "cache")
def fill():
    found = cache.exists()
    cache.touch()
    return [world.rank, found]
assert crossrank.zero_first(world, fill, per={per!r}) == [world.rank, world.rank != 0]
""",
    )


def test_zero_first_refuses_an_unknown_scope():
    with crossrank.connect() as world, pytest.raises(crossrank.UsageError, match=r"'nodes'.*'job' or 'node'"):
        crossrank.zero_first(world, list, per="nodes")


def test_zero_first_tells_the_other_ranks_of_an_exception(ranks):
    ranks(
        2,
        """
ran = []
def fail():
    ran.append(world.rank)
    raise KeyError("no model")
try:
    crossrank.zero_first(world, fail)
except KeyError:
    assert world.rank == 0
except crossrank.RemoteError as error:
    assert world.rank == 1 and error.failed_ranks == (0,) and "no model" in str(error) and ran == []
else:
    raise AssertionError("no exception")
world.barrier()
""",
    )
