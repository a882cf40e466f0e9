"""Runs the ranks of a test as processes of `crossrank run`."""

import subprocess
import sys
import textwrap
from pathlib import Path

import crossrank
import pytest


@pytest.fixture
def ranks(tmp_path):
    """Returns a function that runs a program on N ranks and returns the finished process."""

    def run(count, program, *, timeout=120, check=True):
        file = tmp_path / "program.py"
        file.write_text("import crossrank\nworld = crossrank.connect(timeout=60)\n" + textwrap.dedent(program))
        command = Path(crossrank.__file__).parent / "bin" / "crossrank"
        done = subprocess.run(
            [command, "run", "-n", str(count), "--", sys.executable, file],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return run
