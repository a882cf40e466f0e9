"""The program of the guide."""

import subprocess
import sys
from pathlib import Path

import crossrank
import pytest

pytest.importorskip("numpy")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_weights(tmp_path):
    command = Path(crossrank.__file__).parent / "bin" / "crossrank"
    done = subprocess.run(
        [command, "run", "-n", "2", "--", sys.executable, EXAMPLES / "weights.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = sorted(line.split("] ", 1)[-1] for line in done.stdout.splitlines())
    assert printed == ["refused", "refused", "rows 8, last value 1", "rows 8, last value 1"]
