"""No rank holds the whole model while it is exported."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch_ranks import run_ranks  # noqa: E402

MIB = 1 << 20
ALLOWED = 256 * MIB


def _memory(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def export_within_the_limit(rank: int, size: int) -> None:
    import os

    import crossrank.torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    mesh = init_device_mesh("cpu", (size,))
    rows = 10 * MIB // 4  # of 4 bytes in each rank
    weights = {
        f"w{number}": DTensor.from_local(torch.full((rows, 1), float(number)), mesh, [Shard(0)], run_check=False)
        for number in range(20)
    }
    whole = 20 * size * 10 * MIB
    assert whole > 20 * 10 * MIB + ALLOWED, "the test could not tell a rank with the whole model"
    dist.barrier()
    before = _memory("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts from here
    assert crossrank.torch.export_checkpoint(weights, os.environ["OUT"]).bytes >= whole
    grown = _memory("VmHWM") - before
    assert grown < ALLOWED, f"rank {rank} took {grown // MIB} MiB"
    dist.barrier()
    dist.destroy_process_group()


def test_an_export_takes_at_most_256_mib_beyond_the_weights_of_a_rank(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "model"))
    run_ranks(__file__, "export_within_the_limit", 3)
