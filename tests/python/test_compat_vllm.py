"""crossrank.compat.vllm: vLLM's message queue and stateless groups."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import run_ranks  # noqa: E402


def queue(rank: int, size: int) -> None:
    import torch.distributed as dist
    from crossrank.compat.vllm import MessageQueue, StatelessProcessGroup

    port = [12000 + dist.get_rank() if rank == 0 else None]
    dist.broadcast_object_list(port, src=0)
    stateless = StatelessProcessGroup.create("127.0.0.1", int(port[0] or 0), rank, size)
    for group in (dist.group.WORLD, stateless):
        broadcaster = MessageQueue.create_from_process_group(group, 4096, 2, writer_rank=1)
        for length in (0, 1, 100, 4095, 4096, 100_000, 3_000_000):
            sent = {"array": torch.arange(length), "length": length}
            got = broadcaster.broadcast_object(sent if rank == 1 else None)
            assert got["length"] == length and torch.equal(got["array"], torch.arange(length))
        if rank != 1:
            with pytest.raises(TimeoutError):
                broadcaster.dequeue(timeout=0.01)
            stop = threading.Timer(0.05, broadcaster.shutdown)
            stop.start()
            assert broadcaster.dequeue(timeout=30) is None
            assert broadcaster.shutting_down
            stop.join()
        stateless.barrier()
    assert stateless.all_gather_obj((rank, "x")) == [(r, "x") for r in range(size)]
    assert stateless.broadcast_obj({1, 2} if rank == 2 else None, 2) == {1, 2}
    if rank == 0:
        stateless.send_obj(b"bytes", 2)
    if rank == 2:
        assert stateless.recv_obj(0) == b"bytes"
    stateless.barrier()
    dist.destroy_process_group()


def test_queue() -> None:
    run_ranks(__file__, "queue", 3, backend="gloo")
