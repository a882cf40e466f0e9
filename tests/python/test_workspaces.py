"""Both workspaces alone: which states they keep, replace, withdraw and refuse."""

import subprocess
import sys

import crossrank
import pytest

numpy = pytest.importorskip("numpy")


def write(path, step, **options):
    workspace = crossrank.NFSWorkspace(path, rank=0, **options)
    workspace.write_configs_and_weights({"step": step}, {"w": numpy.full(1000, step)})
    return workspace


def step_in(path, **options):
    """Returns the step in the config of rank 0, after a comparison with the weights; None without a state."""
    state = crossrank.NFSWorkspace.open(path).read_configs_and_weights_from_rank(0, **options)
    if state is None:
        return None
    config, weights = state
    assert weights["w"].numpy().tolist() == [config["step"]] * 1000
    return config["step"]


def files_in(path):
    return sorted(file.name for file in path.iterdir() if not file.name.startswith("."))


@pytest.mark.parametrize("existing, expected", [("remove", None), ("keep", 1), ("remove_killed", 1), ("force", None)])
def test_existing_says_what_becomes_of_the_states_of_earlier_processes(tmp_path, existing, expected):
    program = (
        "import crossrank, numpy, sys\n"
        "earlier = crossrank.NFSWorkspace(sys.argv[1], rank=0)\n"
        "earlier.write_configs_and_weights({'step': 1}, {'w': numpy.full(1000, 1)})\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, timeout=60)
    assert step_in(tmp_path) == 1
    crossrank.NFSWorkspace(tmp_path, rank=1, existing=existing)
    assert step_in(tmp_path) == 1  # a workspace removes files of its own rank alone
    crossrank.NFSWorkspace(tmp_path, rank=0, existing=existing)
    assert step_in(tmp_path) == expected


def test_an_unknown_way_with_existing_states_is_refused(tmp_path):
    with pytest.raises(crossrank.UsageError, match="remove, keep, remove_killed, force"):
        crossrank.NFSWorkspace(tmp_path, rank=0, existing="delete")  # type: ignore[arg-type]


def test_open_reads_and_deletes_nothing(tmp_path):
    workspace = write(tmp_path / "job", 1)
    before = files_in(tmp_path / "job")
    opened = crossrank.NFSWorkspace.open(tmp_path / "job")
    assert opened.path == str(tmp_path / "job") and step_in(tmp_path / "job") == 1
    assert opened.read_configs_and_weights_from_rank(1) is None
    assert files_in(tmp_path / "job") == before
    with pytest.raises(crossrank.UsageError):
        opened.write_configs_and_weights(None, {})
    with pytest.raises(FileNotFoundError):
        crossrank.NFSWorkspace.open(tmp_path / "absent")
    workspace.clean()
    assert step_in(tmp_path / "job") is None


def test_a_workspace_that_writes_torch_archives_replaces_them(tmp_path):
    write(tmp_path, 1, format="torch").write_configs_and_weights({"step": 2}, {"w": numpy.full(1000, 2)})
    assert files_in(tmp_path) == ["rank_0_state.pth"] and step_in(tmp_path) == 2
    torch = pytest.importorskip("torch")
    archive = torch.load(tmp_path / "rank_0_state.pth", weights_only=True)
    assert archive["config"] == {"step": 2} and archive["weight"]["w"].tolist() == [2] * 1000


def test_a_damaged_state_is_refused_unless_the_older_one_is_asked_for(tmp_path):
    workspace = write(tmp_path, 1)
    (older,) = files_in(tmp_path)
    workspace.write_configs_and_weights({"step": 2}, {"w": numpy.full(1000, 2)})
    (newer,) = set(files_in(tmp_path)) - {older}
    with open(tmp_path / newer, "r+b") as file:
        file.seek(-100, 2)
        file.write(b"\xff")
    with pytest.raises(crossrank.FormatError, match=newer):
        step_in(tmp_path)
    assert step_in(tmp_path, damaged="take_older") == 1


def test_a_rank_outside_of_the_job_is_refused(tmp_path):
    with pytest.raises(crossrank.UsageError, match="2"):
        crossrank.NFSWorkspace(tmp_path, rank=2, world_size=2)
    with pytest.raises(crossrank.UsageError, match="5"):
        crossrank.NFSWorkspace(tmp_path, rank=1, world_size=2).read_configs_and_weights_from_rank(5)


def test_a_withdrawn_state_stays_valid_for_those_that_have_read_it(ranks):
    ranks(
        3,
        """
import numpy
n, r = world.world_size, world.rank
shared = crossrank.SharedMemoryWorkspace(world)
assert shared.read_configs_and_weights_from_rank((r + 1) % n) is None
world.barrier()
shared.write_configs_and_weights({"rank": r}, {"w": numpy.full(1 << 16, r)})
world.barrier()
config, weights = shared.read_configs_and_weights_from_rank((r + 1) % n)
world.barrier()
shared.clean()
world.barrier()
assert shared.read_configs_and_weights_from_rank((r + 1) % n) is None
world.barrier()
shared.write_configs_and_weights(None, {"w": numpy.full(1 << 16, -1)})
world.barrier()
assert config == {"rank": (r + 1) % n} and (weights["w"].numpy() == (r + 1) % n).all()
""",
    )


def test_trim_gives_back_memory_that_nobody_uses(ranks):
    ranks(
        2,
        """
import numpy
shared = crossrank.SharedMemoryWorkspace(world)
shared.write_configs_and_weights(None, {"w": numpy.ones(1 << 20)})
world.barrier()
_, weights = shared.read_configs_and_weights_from_rank(1 - world.rank)
world.barrier()
shared.clean()
assert shared.trim() < 1 << 23  # the other rank still reads it
world.barrier()
assert (weights["w"].numpy() == 1).all()
del weights
world.barrier()
assert shared.trim() >= 1 << 23
""",
    )
