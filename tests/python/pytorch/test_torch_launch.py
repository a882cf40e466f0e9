"""Ranks that torchrun starts, and the drop-in for ModelOpt on several sets of ranks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import crossrank  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402


def test_ranks_of_torchrun_find_each_other(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import sys, torch, torch.distributed as dist
        import crossrank.torch
        dist.init_process_group("crossrank")
        value = torch.tensor([dist.get_rank() + 1])
        dist.all_reduce(value)
        open(f"{sys.argv[1]}/rank{dist.get_rank()}", "w").write(f"{value.item()} of {dist.get_world_size()}")
        dist.destroy_process_group()
        """)
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["3 of 2", "3 of 2"]


def sets_of_ranks(rank: int, size: int) -> None:
    """ModelOpt gathers in disjoint sets at once, under one barrier of all ranks."""
    from crossrank.compat.modelopt import get_tensors_parallel

    def gather(ranks: list[int]) -> None:
        with get_tensors_parallel(torch.full((3,), float(rank)), ranks) as tensors:
            received = [tensor[0].item() for tensor in tensors]
        assert received == (ranks if rank == ranks[0] else []), received

    for _ in range(3):
        gather([0, 2] if rank % 2 == 0 else [3, 1])
        dist.barrier()
    if rank != 2:
        gather([3, 0, 1])
    gather(list(range(size)))
    if rank == 2:
        gather([2])
    for wrong, text in (([rank, rank], "listed twice"), ([rank, 9], r"\[9\].*0 to 3"), ([rank, -1], r"\[-1\].*0 to 3")):
        with pytest.raises(crossrank.UsageError, match=text):
            gather(wrong)
    dist.barrier()
    dist.destroy_process_group()


def test_the_drop_in_for_modelopt_gathers_in_disjoint_sets_of_ranks() -> None:
    run_ranks(__file__, "sets_of_ranks", 4, backend="gloo")
