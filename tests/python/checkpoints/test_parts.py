"""Merges in parts."""

import os
import subprocess
import sys

import crossrank
import pytest

numpy = pytest.importorskip("numpy")

NAMES = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(3)]


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "shards").mkdir()
    for rank in range(2):
        weights = {name: numpy.full((2, 4), rank + 2 * layer, numpy.float32) for layer, name in enumerate(NAMES)}
        crossrank.save(tmp_path / "shards" / f"rank{rank}.safetensors", weights)
    merge = crossrank.MergePlan(tmp_path / "shards")
    return crossrank.PartsPlan(merge, tmp_path / "model", parts=3, max_shard_bytes=64)


def test_parts_from_other_processes_make_a_model(plan, tmp_path):
    assert plan.parts == 3 and plan.out == str(tmp_path / "model")
    assert sorted(name for part in range(3) for name in plan.files(part)) == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    assert sum(plan.bytes(part) for part in range(3)) > 3 * 64
    plan.save(tmp_path / "plan.json")
    assert plan.missing() == [0, 1, 2]
    code = "import crossrank, sys; crossrank.consolidate_part(crossrank.PartsPlan.load(sys.argv[1]))"
    for part in (2, 0):
        task = {"SLURM_ARRAY_TASK_ID": str(part + 1), "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "3"}
        subprocess.run([sys.executable, "-c", code, tmp_path / "plan.json"], env={**os.environ, **task}, check=True)
    loaded = crossrank.PartsPlan.load(tmp_path / "plan.json")
    assert loaded.missing() == [1]
    with pytest.raises(crossrank.FormatError, match="1"):
        crossrank.finish_parts(loaded)
    seen = []
    assert crossrank.consolidate_part(loaded, 1, threads=1, progress=lambda *each: seen.append(each)).files == 1
    assert seen and seen[-1][0] == seen[-1][1]
    assert crossrank.consolidate_part(loaded, 1, read_back="none").resumed_files == 1
    assert crossrank.finish_parts(loaded, check="all").files == 3
    model = crossrank.load(tmp_path / "model")
    for layer, name in enumerate(NAMES):
        assert model[name].numpy()[:, 0].tolist() == [2 * layer, 2 * layer, 2 * layer + 1, 2 * layer + 1]


def test_a_part_that_does_not_exist_is_refused(plan, tmp_path, monkeypatch):
    plan.save(tmp_path / "plan.json")
    for name in ("RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(crossrank.UsageError):
        crossrank.consolidate_part(plan, 3)
    with pytest.raises(crossrank.UsageError, match="SLURM_ARRAY_TASK_ID"):
        crossrank.part_from_environment(plan)


def test_an_exception_of_the_progress_of_a_part_is_raised(plan, tmp_path):
    def refuse(done, total, stage):
        raise KeyError("no more progress")

    plan.save(tmp_path / "plan.json")
    with pytest.raises(KeyError, match="no more progress"):
        crossrank.consolidate_part(plan, 0, progress=refuse)
    assert plan.missing() == [0, 1, 2]
