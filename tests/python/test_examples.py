"""The programs of the guide."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import crossrank
import pytest

numpy = pytest.importorskip("numpy")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(folder, *command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def run_ranks(folder, ranks, *program):
    command = Path(crossrank.__file__).parent / "bin" / "crossrank"
    return run(folder, command, "run", "-n", str(ranks), "--", sys.executable, *program)


def titles(picture):
    return [title.text for title in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}title")]


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_weights(tmp_path, where, request):
    if where == "gpu":
        request.getfixturevalue("gpus")
    printed = sorted(line.split("] ", 1)[-1] for line in run_ranks(tmp_path, 2, EXAMPLES / "weights.py", tmp_path))
    assert printed == ["refused", "refused", "rows 8, last value 1", "rows 8, last value 1"]


def test_pictures(tmp_path):
    run_ranks(tmp_path, 3, EXAMPLES / "pictures.py", "demo", tmp_path / "pictures")
    cells = titles(tmp_path / "pictures" / "table.svg")
    assert "layers.2.weight: F32 [12, 8], 384 bytes" in cells and "layers.0.scale: F16 [1], 2 bytes" in cells
    bars = titles(tmp_path / "pictures" / "timeline.svg")
    for number in (1, 3, 5):  # rank 0 opens each range first
        assert sum(bar.startswith(f"opening a range of world, round {number}: waited 0.") for bar in bars) == 3
    assert any("barrier of world, round 7: waited" in bar and "so far" in bar for bar in bars)
    (tmp_path / "odd & <names>").mkdir()
    crossrank.save(tmp_path / "odd & <names>" / "model.safetensors", {"a<b&c": numpy.zeros(0, numpy.uint8)})
    run(tmp_path, sys.executable, EXAMPLES / "pictures.py", "table", "odd & <names>", "odd.svg")
    assert "a<b&c: U8 [0], 0 bytes" in titles(tmp_path / "odd.svg")


@pytest.mark.parametrize("name", [None, "layer.\u00b2", "escape \x1b", "\ufffe"])
def test_pictures_of_odd_names(tmp_path, name):
    weights = {} if name is None else {name: numpy.zeros(2, numpy.uint8)}
    crossrank.save(tmp_path / "model.safetensors", weights)
    run(tmp_path, sys.executable, EXAMPLES / "pictures.py", "table", tmp_path / "model.safetensors", "odd.svg")
    cells = [title for title in titles(tmp_path / "odd.svg") if title.endswith("bytes")]
    assert len(cells) == len(weights)
