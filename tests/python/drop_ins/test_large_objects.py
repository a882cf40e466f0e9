"""The drop-in modules take objects beyond the limits of a config, which are 16 MiB and 1,000,000 values."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import run_ranks  # noqa: E402

_BYTES = 20 << 20
_VALUES = 1_100_000


def stateless_group(rank: int, size: int) -> None:
    import torch.distributed as dist
    from crossrank.compat.vllm import StatelessProcessGroup

    port = [14000 + rank if rank == 0 else None]
    dist.broadcast_object_list(port, src=0)
    group = StatelessProcessGroup.create("127.0.0.1", int(port[0] or 0), rank, size)
    sent = torch.arange(_BYTES // 4, dtype=torch.int32)
    assert torch.equal(group.broadcast(sent if rank == 0 else torch.empty(0), 0), sent)
    if rank == 0:
        group.send(sent, 1)
        group.send_obj(b"x" * _BYTES, 1)
    else:
        assert torch.equal(group.recv(torch.zeros_like(sent), 0), sent)
        assert group.recv_obj(0) == b"x" * _BYTES
    assert group.broadcast_obj(b"y" * _BYTES if rank == 1 else None, 1) == b"y" * _BYTES
    assert group.all_gather_obj(bytes([rank]) * _BYTES) == [bytes([r]) * _BYTES for r in range(size)]
    group.barrier()
    dist.destroy_process_group()


def coordinator(rank: int, size: int) -> None:
    from crossrank.compat.vllm import GroupCoordinator

    group = GroupCoordinator([[0, 1]], rank, "gloo", True)
    tensor = torch.arange(_BYTES // 4, dtype=torch.int32)
    values = {"text": "x" * _BYTES, "tensor": tensor, "nested": {"tensor": tensor}}
    for got in (
        group.broadcast_object(values if rank == 0 else None),
        group.broadcast_object_list([values if rank == 0 else None])[0],
        group.broadcast_tensor_dict(values if rank == 0 else None),
        group.send_tensor_dict(values) if rank == 0 else group.recv_tensor_dict(),
        group.send_object(values, 1) if rank == 0 else group.recv_object(0),
    ):
        if got is not None:
            assert list(got) == list(values) and got["text"] == values["text"]
            assert torch.equal(got["tensor"], tensor) and torch.equal(got["nested"]["tensor"], tensor)
        else:
            assert rank == 0
    group.destroy()


def axolotl(rank: int, size: int) -> None:
    import crossrank.compat.axolotl as axolotl

    values = {"text": "x" * _BYTES, "bytes": b"y" * _BYTES, "lengths": [7] * _VALUES}
    assert axolotl.broadcast_dict(values if rank == 0 else {}) == values
    assert axolotl.compute_and_broadcast(lambda: values) == values
    gathered = axolotl.gather_from_all_ranks(lambda: [rank] * _VALUES)
    assert gathered == ([[r] * _VALUES for r in range(size)] if rank == 0 else None)
    assert axolotl.reduce_and_broadcast(lambda: [rank] * _VALUES, lambda all_of: all_of[1]) == [1] * _VALUES
    axolotl.barrier()


@pytest.mark.parametrize("scenario", ["stateless_group", "coordinator", "axolotl"])
def test_scenario(scenario: str) -> None:
    run_ranks(__file__, scenario, 2, backend="gloo")
