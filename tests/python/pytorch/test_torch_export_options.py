"""Options and progress of exports from the memory of ranks of torch."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import crossrank.torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402


def shared_folder(rank: int) -> str:
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    return str(folder[0])


def options_of_files(rank: int, size: int) -> None:
    folder = shared_folder(rank)
    weights = {"a": torch.arange(4.0)}
    options: dict[str, Any] = {"format": "images", "read_back": "all", "threads": 1}
    crossrank.torch.export_checkpoint(weights, os.path.join(folder, "now"), **options)
    crossrank.torch.async_export_checkpoint(weights, os.path.join(folder, "later"), **options).wait()
    for out in ("now", "later"):
        loaded = crossrank.load(os.path.join(folder, out))
        assert torch.equal(loaded["a"].torch(), weights["a"])
        assert crossrank.NFSWorkspace.open(os.path.join(folder, out)).read_configs_and_weights_from_rank(0)
    for wrong in ({"read_back": "some"}, {"fused_layout": "round"}, {"threads": -3}):
        with pytest.raises(crossrank.Error):
            crossrank.torch.export_checkpoint(weights, os.path.join(folder, "never"), **wrong)
    dist.barrier()
    dist.destroy_process_group()


def fused_layers(rank: int, size: int) -> None:
    """The bytes of a shard do not tell whether it holds a piece of each part of a fused layer."""
    name = "model.layers.0.mlp.gate_up_proj.weight"
    whole = torch.arange(16.0).view(8, 2)
    config = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    here = crossrank.torch.Grid(tp_rank=rank, tp=size)
    mine = {name: whole[4 * rank : 4 * rank + 4]}
    for layout, rows in (("plain", list(range(8))), ("per_rank", [0, 1, 4, 5, 2, 3, 6, 7])):
        full = crossrank.torch.gather_full_state_dict(mine, grid=here, config=config, fused_layout=layout)
        assert rank != 0 or full[name][:, 0].div(2).tolist() == rows, full
        shards = crossrank.torch.reshard(mine, crossrank.torch.Grid(), grid=here, config=config, fused_layout=layout)
        assert shards[name][:, 0].div(2).tolist() == rows, shards
    dist.destroy_process_group()


def partial_tensors(rank: int, size: int) -> None:
    from torch.distributed.tensor import DTensor, Partial, init_device_mesh

    mesh = init_device_mesh("cpu", (size,))
    mine = torch.tensor([6, 3] if rank == 0 else [5, 1])
    expected = {"sum": [11, 4], "product": [30, 3], "min": [5, 1], "max": [6, 3], "band": [4, 1], "bor": [7, 3], "bxor": [3, 2]}
    weights = {op: DTensor.from_local(mine, mesh, [Partial(op)], run_check=False) for op in expected}
    full = crossrank.torch.gather_full_state_dict(weights)
    assert rank != 0 or {name: tensor.tolist() for name, tensor in full.items()} == expected
    dist.destroy_process_group()


class Bar:
    """What an export asks of tqdm."""

    made: list[Bar] = []  # noqa: RUF012 (of this process)

    def __init__(self, total: int, desc: str, unit: str, unit_scale: bool) -> None:
        self.n, self.total, self.desc, self.is_open = 0, total, desc, True
        Bar.made.append(self)

    def update(self, more: int) -> None:
        self.n += more

    def close(self) -> None:
        self.is_open = False


def progress(rank: int, size: int) -> None:
    import sys
    import types

    auto: Any = types.ModuleType("tqdm.auto")
    auto.tqdm = Bar
    sys.modules.update({"tqdm": types.ModuleType("tqdm"), "tqdm.auto": auto})
    folder = shared_folder(rank)
    weights = {"a": torch.arange(4.0)}
    crossrank.torch.export_checkpoint(weights, os.path.join(folder, "now"), progress=True)
    crossrank.torch.async_export_checkpoint(weights, os.path.join(folder, "later"), progress=True).wait()
    written = [bar for bar in Bar.made if bar.desc == "writing"]
    assert len(written) == (2 if rank == 0 else 0) and all(bar.n == bar.total > 0 for bar in written), written
    assert not any(bar.is_open for bar in Bar.made)

    seen: list[tuple[int, int, str]] = []
    threads: set[int] = set()

    def report(*each: Any) -> None:
        seen.append(each)
        threads.add(threading.get_ident())

    crossrank.torch.async_export_checkpoint(weights, os.path.join(folder, "seen"), progress=report).wait()
    assert not seen if rank else seen[-1][0] == seen[-1][1] and threading.get_ident() not in threads
    dist.barrier()
    dist.destroy_process_group()


def progress_that_raises(rank: int, size: int) -> None:
    def refuse(done: int, total: int, stage: str) -> None:
        raise KeyError("no more progress")

    folder = shared_folder(rank)
    weights = {"a": torch.arange(4.0)}
    for number in range(2):
        out = os.path.join(folder, str(number))
        request = crossrank.torch.async_export_checkpoint(weights, out, progress=refuse if rank == 0 else None)
        for _ in range(2):
            with pytest.raises(KeyError if rank == 0 else crossrank.RemoteError, match="no more progress"):
                request.wait()
        assert not os.path.exists(os.path.join(out, "model.safetensors"))
    dist.barrier()
    dist.destroy_process_group()


def interrupted_wait(rank: int, size: int) -> None:
    """Ctrl-C ends an export that waits for another rank, and that rank learns of it."""
    import signal
    import time

    folder = shared_folder(rank)
    mark, out = os.path.join(folder, "interrupted"), os.path.join(folder, "model")
    weights = {"a": torch.arange(4.0)}
    sent = [0.0]

    def interrupt() -> None:
        sent[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    class Slow(dict):
        def items(self) -> Any:
            time.sleep(60)

    for number, interrupted in enumerate((weights, Slow(weights))):  # in the wait, and in the program's own code
        crossrank.torch.gather_full_state_dict(weights)  # the ranks connect, after an interruption anew
        if rank == 0:
            threading.Timer(0.3, interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                crossrank.torch.export_checkpoint(interrupted, out)
            assert time.monotonic() - sent[0] < 1
            os.mkdir(f"{mark}{number}")
        else:
            until = time.monotonic() + 60
            while not os.path.exists(f"{mark}{number}") and time.monotonic() < until:
                time.sleep(0.01)
            with pytest.raises(crossrank.PeerLostError):
                crossrank.torch.export_checkpoint(weights, out)
        dist.barrier()
        assert not os.path.exists(out)
    crossrank.torch.export_checkpoint(weights, out)
    dist.barrier()
    dist.destroy_process_group()


def exit_during_progress(rank: int, size: int) -> None:
    """The program ends while a thread of the library is in the callback, or about to call it."""
    import time

    folder = shared_folder(rank)
    weights = {str(number): torch.ones(1000) for number in range(200)}
    request = crossrank.torch.async_export_checkpoint(
        weights, os.path.join(folder, "model"), max_shard_bytes=8000, progress=lambda *_: time.sleep(0.05)
    )
    dist.destroy_process_group()
    assert request is not None


@pytest.mark.parametrize(
    "scenario",
    [
        "options_of_files",
        "fused_layers",
        "partial_tensors",
        "progress",
        "progress_that_raises",
        "interrupted_wait",
        "exit_during_progress",
    ],
)
def test_exports(scenario: str) -> None:
    run_ranks(__file__, scenario, 2, backend="gloo")
