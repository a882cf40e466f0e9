"""Runs a function of a test module as the ranks of a job of torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_MAIN = """
import importlib.util, os, sys
import torch, torch.distributed as dist
torch.set_num_threads(1)
import crossrank.torch
path, name, backend, rank, size, store, helpers = sys.argv[1:]
os.environ.update(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size)
dist.init_process_group(backend, init_method="file://" + store, rank=int(rank), world_size=int(size))
sys.path[:0] = [os.path.dirname(path), helpers]
spec = importlib.util.spec_from_file_location("scenario", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
getattr(module, name)(int(rank), int(size))
"""


def run_ranks(
    path: str, name: str, ranks: int, backend: str = "crossrank", limit: float = 180.0, timeout: str = "60"
) -> list[str]:
    """Runs `name(rank, size)` of the module at `path` in processes, and returns what each printed.

    `timeout` is that of all groups, in seconds; an empty text leaves it to the program.
    Fails with the output of the first rank that failed. No rank outlives the call.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        helpers = str(Path(__file__).parent)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", _MAIN, path, name, backend, str(rank), str(ranks), store, helpers],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CROSSRANK_TIMEOUT": timeout},
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=limit) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode != 0]
    report = "\n".join(
        f"rank {rank} of {name} exited with {processes[rank].returncode}:\n{''.join(outputs[rank])}" for rank in failed
    )
    assert not failed, report
    return [out for out, _ in outputs]
