"""Ranks that mpirun starts, with MPI started by the library or by mpi4py."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import crossrank
import pytest

plugin = Path(crossrank.__file__).parent / "libcrossrank_mpi.so"
pytestmark = [
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (openmpi-bin)"),
    pytest.mark.skipif(not plugin.exists(), reason="the package was built without Open MPI"),
]


@pytest.fixture
def mpirun(tmp_path):
    """Returns a function that runs a program on N ranks and returns the lines that rank 0 prints: mpirun mixes those of
    several ranks."""

    def run(count, program):
        file = tmp_path / "program.py"
        file.write_text("import crossrank\n" + textwrap.dedent(program))
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none"]
        done = subprocess.run(
            [*command, "-n", str(count), sys.executable, file], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("backend", ["mpi", "composite"])
def test_the_library_starts_mpi(mpirun, backend):
    program = f"""
    world = crossrank.connect(backend="{backend}", timeout=60)
    import numpy
    values = numpy.full(1000, world.rank + 1, numpy.int64)
    world.all_reduce(values)
    with crossrank.get_tensors_parallel(numpy.full(3, world.rank), group=world) as parts:
        received = [int(part.numpy()[0]) for part in parts]
    for each in world.gather_objects([world.backend, int(values[999]), received]):
        print(each)
    """
    assert mpirun(3, program) == [
        f"['{backend}', 6, [0, 1, 2]]", f"['{backend}', 6, []]", f"['{backend}', 6, []]"
    ]  # fmt: skip


def test_the_group_of_a_communicator_of_mpi4py(mpirun):
    pytest.importorskip("mpi4py")
    program = """
    from mpi4py import MPI
    world = crossrank.connect(communicator=MPI.COMM_WORLD, timeout=60)
    half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2, -MPI.COMM_WORLD.rank)
    group = crossrank.connect(communicator=half, backend="mpi")
    mine = [world.world_size, group.backend, group.rank, group.all_gather_objects(world.rank)]
    for each in world.gather_objects(mine):
        print(each)
    assert MPI.COMM_WORLD.allreduce(1) == 4  # the program's own calls go on
    """
    assert mpirun(4, program) == [
        "[4, 'mpi', 1, [2, 0]]", "[4, 'mpi', 1, [3, 1]]", "[4, 'mpi', 0, [2, 0]]", "[4, 'mpi', 0, [3, 1]]"
    ]  # fmt: skip


def test_a_communicator_that_is_no_group_is_an_error(mpirun):
    pytest.importorskip("mpi4py")
    program = """
    from mpi4py import MPI
    for wrong in (MPI.COMM_NULL, 7, "world"):
        try:
            crossrank.connect(communicator=wrong)
        except crossrank.UsageError as error:
            print(error)
    try:
        crossrank.connect(communicator=MPI.COMM_WORLD, backend="shm")
    except crossrank.UsageError as error:
        print(error)
    """
    text = "\n".join(mpirun(1, program))
    assert "MPI_COMM_NULL" in text and "this backend cannot use a communicator" in text
    assert "communicator is a int, not" in text and "communicator is a str, not" in text
