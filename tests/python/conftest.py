"""Runs the ranks of a test as processes of `crossrank run`."""

import os
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


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Gives the ranks of a test a GPU each, of an emulated driver. Fails when the emulator has reported a misuse.

    The emulator is asynchronous: bytes that are read without an order of streams are stale. `gpus(backend)` chooses what
    carries collectives, "nccl" or "staged".
    """
    driver, nccl = os.environ.get("CROSSRANK_TEST_CUDA", ""), os.environ.get("CROSSRANK_TEST_NCCL", "")
    if not (os.path.exists(driver) and os.path.exists(nccl)):
        pytest.skip("CROSSRANK_TEST_CUDA and CROSSRANK_TEST_NCCL name no emulated libraries")
    report = tmp_path / "gpu_report"
    monkeypatch.setenv("CROSSRANK_CUDA_LIBRARY", driver)
    monkeypatch.setenv("CROSSRANK_NCCL_LIBRARY", nccl)
    monkeypatch.setenv("EMULATED_GPU_COUNT", "2")
    monkeypatch.setenv("EMULATED_GPU_REPORT", str(report))
    monkeypatch.setenv("EMULATED_GPU_KEPT", "allocation,host,stream,event,graph,pool")  # leaks have a test of their own
    yield lambda backend: monkeypatch.setenv("CROSSRANK_DEVICE", backend)
    assert not report.exists(), report.read_text()
