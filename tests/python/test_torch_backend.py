"""The backend "crossrank" of torch.distributed."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import crossrank  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

_JOIN = """
import sys
from datetime import timedelta
import torch.distributed as dist
import crossrank.torch
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), "file://" + sys.argv[3]
try:
    dist.init_process_group("crossrank", init_method=store, rank=rank, world_size=size, timeout=timedelta(hours=1))
except Exception as error:
    print(type(error).__name__, error)
"""

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]


def every_collective(rank: int, size: int) -> None:
    for dtype in DTYPES:
        one = torch.full((3, 5), rank + 1, dtype=dtype)
        dist.all_reduce(one)
        assert torch.equal(one, torch.full((3, 5), size * (size + 1) // 2, dtype=dtype))
        most = torch.full((4,), rank, dtype=dtype)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        assert torch.equal(most, torch.full((4,), size - 1, dtype=dtype))
    mean = torch.full((7,), float(rank))
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert torch.allclose(mean, torch.full((7,), (size - 1) / 2))
    wave = torch.full((2,), complex(rank, 1))
    dist.all_reduce(wave)
    assert torch.equal(wave, torch.full((2,), complex(size * (size - 1) / 2, size)))
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    assert flags.tolist() == [True, False, True]

    turned = torch.arange(6.0).reshape(2, 3).t() * (rank + 1)
    dist.all_reduce(turned)
    assert torch.equal(turned, torch.arange(6.0).reshape(2, 3).t() * (size * (size + 1) // 2))

    source = torch.arange(5) if rank == 1 else torch.zeros(5, dtype=torch.int64)
    dist.broadcast(source, src=1)
    assert torch.equal(source, torch.arange(5))

    parts = [torch.empty(2, dtype=torch.bfloat16) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), rank, dtype=torch.bfloat16))
    assert [part[0].item() for part in parts] == list(range(size))
    joined = torch.empty(size * 3)
    dist.all_gather_into_tensor(joined, torch.full((3,), float(rank)))
    assert joined.reshape(size, 3)[:, 0].tolist() == list(range(size))

    gathered = [torch.empty(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), gathered, dst=0)
    if gathered is not None:
        assert [part[1].item() for part in gathered] == list(range(size))
    given = [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else None
    mine = torch.empty(2)
    dist.scatter(mine, given, src=0)
    assert mine.tolist() == [rank, rank]

    total = torch.full((3,), float(rank))
    dist.reduce(total, dst=0)
    assert total[0].item() == (size * (size - 1) / 2 if rank == 0 else rank)
    shard = torch.empty(2)
    dist.reduce_scatter_tensor(shard, torch.arange(size * 2.0))
    assert torch.equal(shard, torch.arange(size * 2.0)[rank * 2 : rank * 2 + 2] * size)
    uneven = torch.empty(rank + 1)
    dist.reduce_scatter(uneven, [torch.full((r + 1,), float(rank)) for r in range(size)])
    assert torch.equal(uneven, torch.full((rank + 1,), size * (size - 1) / 2))

    rows = torch.arange(size) + rank * 10
    answer = torch.empty_like(rows)
    dist.all_to_all_single(answer, rows)
    assert answer.tolist() == [r * 10 + rank for r in range(size)]
    send = torch.cat([torch.full((r + 1, 2), rank) for r in range(size)])
    receive = torch.empty((size * (rank + 1), 2), dtype=send.dtype)
    dist.all_to_all_single(receive, send, [rank + 1] * size, [r + 1 for r in range(size)])
    assert receive[:, 0].tolist() == [r for r in range(size) for _ in range(rank + 1)]
    outs = [torch.empty(r + rank + 1) for r in range(size)]
    dist.all_to_all(outs, [torch.full((r + rank + 1,), float(rank)) for r in range(size)])
    assert [out[0].item() for out in outs] == list(range(size))

    values = [None] * size
    dist.all_gather_object(values, {"rank": rank, "text": "x" * rank})
    assert values == [{"rank": r, "text": "x" * r} for r in range(size)]
    dist.barrier()
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, src=0)
    dist.destroy_process_group()


def point_to_point(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    # Each rank receives first: a backend that runs one operation after the other would hang.
    received = torch.empty(1000)
    works = [dist.irecv(received, left), dist.isend(torch.full((1000,), float(rank)), right)]
    for work in works:
        work.wait()
    assert torch.equal(received, torch.full((1000,), float(left)))
    first, second = torch.empty(1), torch.empty(1)
    operations = [
        dist.P2POp(dist.irecv, first, left, tag=7),
        dist.P2POp(dist.irecv, second, left, tag=8),
        dist.P2POp(dist.isend, torch.tensor([7.0]), right, tag=7),
        dist.P2POp(dist.isend, torch.tensor([8.0]), right, tag=8),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (first.item(), second.item()) == (7.0, 8.0)
    dist.barrier()
    dist.destroy_process_group()


def wrong_arguments(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="dtype"):
        dist.all_gather_into_tensor(torch.zeros(2 * size, dtype=torch.int32), torch.ones(2))
    with pytest.raises(ValueError, match="dtype"):
        dist.reduce_scatter_tensor(torch.zeros(2, dtype=torch.int32), torch.ones(2 * size))
    with pytest.raises(ValueError, match="dtype"):
        dist.all_to_all_single(torch.zeros(size, dtype=torch.int32), torch.ones(size))
    with pytest.raises(ValueError, match="elements"):
        dist.reduce_scatter(torch.zeros(3), [torch.ones(2) for _ in range(size)])
    for asynchronous in [False, True]:
        with pytest.raises(ValueError, match="average"):
            work = dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG, async_op=asynchronous)
            work.wait()
    if rank == 0:
        with pytest.raises(ValueError, match="elements"):
            dist.gather(torch.ones(2), [torch.zeros(3) for _ in range(size)], dst=0)
        with pytest.raises(ValueError, match="elements"):
            dist.scatter(torch.zeros(2), [torch.ones(3) for _ in range(size)], src=0)
    # Nothing has been sent, so the group is usable.
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
    dist.destroy_process_group()


def any_source(rank: int, size: int) -> None:
    each = 5
    if rank == 0:
        received = torch.empty(1000)
        sources = []
        for _ in range(each * (size - 1)):
            sources.append(dist.recv(received, tag=3))
            assert torch.equal(received, torch.full((1000,), float(sources[-1])))
        assert sorted(sources) == sorted(list(range(1, size)) * each)
    else:
        for _ in range(each):
            dist.send(torch.full((1000,), float(rank)), 0, tag=3)
    # The sender is a rank of the job, also where the group counts otherwise.
    later = dist.new_group(list(range(1, size)))
    if rank == 1:
        one = torch.zeros(2, 3).t()
        work = dist.irecv(one, group=later)
        assert work is not None and work.wait()
        assert torch.equal(one, torch.full((3, 2), 7.0))
        assert dist.recv(one, group=later) == size - 1
    elif rank == size - 1:
        for _ in range(2):
            dist.send(torch.full((3, 2), 7.0), 1, group=later)
    dist.barrier()
    if rank == 0:
        with pytest.raises(crossrank.MismatchError, match="rank 1"):
            dist.recv(torch.empty(3))
    elif rank == 1:
        dist.send(torch.empty(4), 0)
    dist.barrier()
    dist.destroy_process_group()


def leaving(rank: int, size: int) -> None:
    # Ranks that have sent everything leave, while rank 0 still receives from others.
    if rank != 0:
        if rank == size - 1:
            dist.distributed_c10d._get_default_store().wait(["go"])
        dist.send(torch.tensor([rank]), 0)
        dist.destroy_process_group()
        return
    received = torch.zeros(1, dtype=torch.int64)
    sources = [dist.recv(received) for _ in range(size - 2)]
    last = dist.irecv(received)
    assert last is not None and not last.is_completed()
    dist.distributed_c10d._get_default_store().set("go", "")
    assert last.wait()
    assert sorted(sources) == list(range(1, size - 1))
    assert received.item() == size - 1
    dist.destroy_process_group()


def asynchronous(rank: int, size: int) -> None:
    tensors = [torch.full((100 * i,), float(rank)) for i in range(1, 20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    count = works[3].get_future().then(lambda future: future.value()[0].numel())
    dist.barrier()
    for tensor, work in zip(tensors, works, strict=True):
        work.wait()
        assert work.is_completed()
        assert torch.equal(tensor, torch.full_like(tensor, size * (size - 1) / 2))
    assert count.wait() == 400
    even = dist.new_group(list(range(0, size, 2)))
    if rank % 2 == 0:
        own = torch.tensor([rank])
        dist.all_reduce(own, group=even)
        assert own.item() == sum(range(0, size, 2))
        dist.barrier(group=even)
    dist.barrier()
    dist.destroy_process_group()


def nested_callbacks(rank: int, size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def reduce_again(future: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    ones = torch.ones(5)
    twice = dist.all_reduce(ones, async_op=True).get_future().then(reduce_again)
    assert torch.equal(twice.wait(), torch.full((5,), float(size * size)))

    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).pow(2).mean().backward()
        optimizer.step()
    weights = [torch.empty(64, 64) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(each, weights[0]) for each in weights)
    dist.destroy_process_group()


def send_beside_a_barrier(rank: int, size: int) -> None:
    import threading
    import time

    def send_later() -> None:
        end = time.monotonic() + 30
        while not dist.group.WORLD._operations._inline and time.monotonic() < end:
            time.sleep(0.001)
        dist.send(torch.tensor([5.0]), 1)

    if rank == 0:
        helper = threading.Thread(target=send_later)
        helper.start()
        dist.barrier()
        helper.join()
    else:
        received = torch.zeros(1)
        dist.recv(received, 0)
        assert received.item() == 5
        dist.barrier()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
    dist.destroy_process_group()


def interrupted_barrier(rank: int, size: int) -> None:
    import os
    import signal
    import threading

    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            dist.barrier()
        # This rank lives on, so the abort must tell the other.
        store.wait(["told"], timedelta(seconds=30))
    else:
        with pytest.raises(crossrank.PeerLostError, match="signal"):
            dist.recv(torch.empty(1), 0)
        store.set("told", "")
    dist.destroy_process_group()


def interrupted(rank: int, size: int) -> None:
    import os
    import signal
    import threading

    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            dist.recv(torch.empty(1), 1)
        # This rank lives on, so the abort must tell the other.
        store.wait(["told"], timedelta(seconds=30))
    else:
        with pytest.raises(crossrank.PeerLostError, match="signal") as caught:
            dist.recv(torch.empty(1), 0)
        assert caught.value.failed_ranks == (0,)
        store.set("told", "")
    dist.destroy_process_group()


def in_place(rank: int, size: int) -> None:
    for asynchronous in [False, True]:
        whole = torch.arange(size * 3.0) + rank
        work = dist.reduce_scatter_tensor(whole[rank * 3 : rank * 3 + 3], whole, async_op=asynchronous)
        assert work is None or work.wait()
        expected = torch.arange(size * 3.0) * size + size * (size - 1) / 2
        assert torch.equal(whole[rank * 3 : rank * 3 + 3], expected[rank * 3 : rank * 3 + 3])
        joined = torch.full((size * 3,), float(rank))
        work = dist.all_gather_into_tensor(joined, joined[rank * 3 : rank * 3 + 3], async_op=asynchronous)
        assert work is None or work.wait()
        assert torch.equal(joined, torch.arange(float(size)).repeat_interleave(3))
        shifted = torch.full((size * 3,), float(rank))
        work = dist.all_gather_into_tensor(shifted, shifted[1:4], async_op=asynchronous)
        assert work is None or work.wait()
        assert torch.equal(shifted, joined)
    dist.destroy_process_group()


def forked(rank: int, size: int) -> None:
    import os

    pending = dist.irecv(torch.empty(1), 1 - rank)
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    child = os.fork()
    if child == 0:
        calls = [
            lambda: dist.all_reduce(torch.ones(1), async_op=True),
            lambda: dist.send(torch.ones(1), 1 - rank),
            lambda: pending.wait(),
        ]
        for call in calls:
            try:
                call()
            except crossrank.UsageError:
                continue
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.send(torch.ones(1), 1 - rank)
    assert pending.wait()
    dist.barrier()
    dist.destroy_process_group()


def unmatched_receive(rank: int, size: int) -> None:
    works = [dist.irecv(torch.empty(1), 1 - rank), dist.irecv(torch.empty(1))]
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    for work in works:
        with pytest.raises(crossrank.CancelledError):
            work.wait()


def grid(rank: int, size: int) -> None:
    import shutil
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))

    def make(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4))

    reference = make(1)
    inputs = torch.randn(size * 4, 6)
    reference(inputs).pow(2).mean().backward()
    model = make(1)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(inputs[rank * 4 : rank * 4 + 4]).pow(2).mean().backward()
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(parameter.grad.full_tensor(), expected.grad, atol=1e-6)

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    dcp.save(model.state_dict(), checkpoint_id=f"{folder[0]}/now")
    dcp.async_save(model.state_dict(), checkpoint_id=f"{folder[0]}/later").result()
    for name in ["now", "later"]:
        other = make(2)
        fully_shard(other, mesh=mesh)
        state = other.state_dict()
        dcp.load(state, checkpoint_id=f"{folder[0]}/{name}")
        other.load_state_dict(state)
        for parameter, expected in zip(other.parameters(), reference.parameters(), strict=True):
            assert torch.equal(parameter.full_tensor(), expected)

    row = mesh["shard"].get_group()
    members = dist.get_process_group_ranks(row)
    values = [None] * len(members)
    dist.all_gather_object(values, {"rank": rank}, group=row)
    assert [value["rank"] for value in values] == members
    text = [f"from {rank}"]
    dist.broadcast_object_list(text, src=members[0], group=row)
    assert text == [f"from {members[0]}"]
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


def sparse(rank: int, size: int) -> None:
    mine = torch.sparse_coo_tensor([[rank, 0]], [float(rank + 1), 1.0], (size,))
    dist.all_reduce(mine)
    dense = torch.arange(1.0, size + 1)
    dense[0] += size
    assert torch.equal(mine.to_dense(), dense), mine
    dist.destroy_process_group()


def training(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

    torch.manual_seed(1)
    reference = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    inputs = torch.randn(size * 4, 6)
    reference(inputs).pow(2).mean().backward()
    expected = [parameter.grad.clone() for parameter in reference.parameters()]
    reference.zero_grad()

    parallel = torch.nn.parallel.DistributedDataParallel(reference)
    parallel(inputs[rank * 4 : rank * 4 + 4]).pow(2).mean().backward()
    for parameter, gradient in zip(reference.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    sharded = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded(inputs[rank * 4 : rank * 4 + 4]).pow(2).mean().backward()
    for parameter, gradient in zip(sharded.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad.full_tensor(), gradient, atol=1e-6)

    whole = torch.arange(24.0).reshape(8, 3)
    spread = distribute_tensor(whole, mesh, [Shard(0)])
    assert isinstance(spread, DTensor)
    assert torch.equal(spread.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    dist.destroy_process_group()


def export(rank: int, size: int) -> None:
    import os
    import tempfile

    import crossrank
    import crossrank.torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.LayerNorm(9), torch.nn.Linear(9, 5, bias=False))
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    assert crossrank.torch.export_checkpoint(model, out, config={"kind": "small"}).files == 1
    loaded = crossrank.load(out)
    assert set(loaded) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(loaded[name].torch(), tensor), name
    full = crossrank.torch.gather_full_state_dict(model, dst=1)
    assert set(full) == (set(expected) if rank == 1 else set())
    assert all(torch.equal(full[name], expected[name]) for name in full)
    with pytest.raises(crossrank.UsageError):
        crossrank.torch.export_checkpoint(model, out)
    dist.barrier()
    dist.destroy_process_group()


def export_after_a_failure(rank: int, size: int) -> None:
    """A group that an export has ended is replaced, also after torch's own group was made anew."""
    import tempfile

    import crossrank
    import crossrank.torch
    from crossrank.compat import groups

    def gather() -> None:
        full = crossrank.torch.gather_full_state_dict({"a": torch.arange(4.0)})
        assert list(full) == (["a"] if rank == 0 else [])

    gather()
    before = groups.world()
    with pytest.raises(crossrank.Error), groups.until_death(groups.world()) as group:
        if rank == 1:
            group.abort("interrupted")
        group.barrier()
    gather()
    assert groups.world() is not before
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder[0]}/store", rank=rank, world_size=size)
    again = groups.world()
    gather()
    assert again is groups.world()
    dist.destroy_process_group()


def export_after_a_cancellation(rank: int, size: int) -> None:
    """A progress callback that raises on one rank cancels the export on all, and they meet again in a new group."""
    import os
    import tempfile

    import crossrank
    import crossrank.torch

    def refuse(done: int, total: int, stage: str) -> None:
        raise KeyError("no more progress")

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    weights = {"a": torch.arange(4.0)}
    with pytest.raises(KeyError if rank == 0 else crossrank.CancelledError):
        crossrank.torch.export_checkpoint(weights, out, progress=refuse if rank == 0 else None)
    full = crossrank.torch.gather_full_state_dict(weights)
    assert list(full) == (["a"] if rank == 0 else [])
    dist.barrier()
    dist.destroy_process_group()


def export_in_the_background(rank: int, size: int) -> None:
    """Training changes the parameters while they are written; collectives of the same ranks go on."""
    import os
    import tempfile

    import crossrank
    import crossrank.torch
    from crossrank.compat import groups
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    torch.manual_seed(5)
    model = torch.nn.Linear(700, 900)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    out = os.path.join(str(folder[0]), "model")
    request = crossrank.torch.async_export_checkpoint(model, out, single_file=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    groups.world().barrier()
    assert request.wait().files == 1 and request.done()
    loaded = crossrank.load(out)
    assert all(torch.equal(loaded[name].torch(), tensor) for name, tensor in expected.items())
    with pytest.raises(crossrank.UsageError):  # the output exists
        crossrank.torch.async_export_checkpoint(model, out).wait()
    with pytest.raises(crossrank.UnavailableError):
        crossrank.torch.async_export_checkpoint(model, out + "2", max_copy_bytes=1000)
    dropped = crossrank.torch.async_export_checkpoint(model, out + "3")
    del dropped
    dist.barrier()
    assert sorted(os.listdir(str(folder[0]))) in (["model"], ["model", "model3"])  # it may have been faster
    dist.destroy_process_group()


def interrupted_export(rank: int, size: int) -> None:
    """Ctrl-C in the wait for a background export cancels it on all ranks."""
    import os
    import signal
    import tempfile
    import threading
    import time
    from pathlib import Path

    import crossrank
    import crossrank.torch

    shared = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    pids = [0] * size
    dist.all_gather_object(pids, os.getpid())
    out = os.path.join(str(shared[0]), "model")
    weights = {f"w{i}": torch.full((1 << 22,), float(i)) for i in range(8)}
    request = crossrank.torch.async_export_checkpoint(weights, out)
    if rank == 1:
        # The export cannot end before rank 0 was interrupted, which then lets this rank go on.
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(crossrank.CancelledError):
            request.wait()
    else:

        def interrupt() -> None:
            while ") T " not in Path(f"/proc/{pids[1]}/stat").read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
            os.kill(pids[1], signal.SIGCONT)

        helper = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt):
            helper.start()
            request.wait()
        helper.join()
    assert not os.path.exists(os.path.join(out, "model.safetensors"))
    dist.barrier()
    dist.destroy_process_group()


def states_of_all_kinds(rank: int, size: int) -> None:
    """Tied weights and entries without a tensor."""
    import crossrank
    import crossrank.torch

    class Config:
        tie_word_embeddings = True

    class Tied(torch.nn.Module):
        _tied_weights_keys = ("head.weight",)
        config = Config()

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(4, 3)
            self.head = torch.nn.Linear(3, 4, bias=False)
            self.head.weight = self.embedding.weight

    torch.manual_seed(3)
    model = Tied()
    full = crossrank.torch.gather_full_state_dict(model)
    if rank == 0:
        model.load_state_dict(full, strict=True)
    full = crossrank.torch.gather_full_state_dict({"a": torch.ones(2), "a._extra_state": None})
    assert list(full) == (["a"] if rank == 0 else [])
    with pytest.raises(crossrank.UsageError, match=r"bytes under a\._extra_state"):
        crossrank.torch.gather_full_state_dict({"a": torch.ones(2), "a._extra_state": b"x"})
    dist.destroy_process_group()


def late_at_monitored_barrier(rank: int, size: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    if rank != 1:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=1 if rank == 0 else 30))
    dist.barrier()
    dist.destroy_process_group()


def one_limit_for_all_ranks(rank: int, size: int) -> None:
    """A rank that comes late leaves less time for the others."""
    import time

    start = time.monotonic()
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 2 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=4))
        assert time.monotonic() - start < 6
    elif rank == 1:
        time.sleep(3)
        with pytest.raises(RuntimeError):
            dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.barrier()
    dist.destroy_process_group()


def groups_on_one_store(rank: int, size: int) -> None:
    """Groups that are made one after the other on one store do not find each other's keys."""
    import tempfile
    import time

    from crossrank.compat import groups

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder[0]}/store", size)
    for attempt in range(3):
        if rank == 0:
            time.sleep(0.5)  # so that another rank would find the job of the last attempt
        dist.init_process_group("crossrank", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
        if attempt == 0:
            dist.monitored_barrier()
        elif rank == 0:
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(seconds=0.5))
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size
        if rank == 0:
            time.sleep(0.5)
        assert groups.world().all_gather_objects(rank) == list(range(size))
        dist.destroy_process_group()


def death(rank: int, size: int) -> None:
    import os
    import signal

    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception, match="rank 1"):
        dist.all_reduce(torch.ones(1000))


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective(ranks: int) -> None:
    run_ranks(__file__, "every_collective", ranks)


@pytest.mark.parametrize(
    "scenario",
    [
        "point_to_point",
        "asynchronous",
        "nested_callbacks",
        "in_place",
        "sparse",
        "training",
        "export",
        "late_at_monitored_barrier",
        "groups_on_one_store",
        "interrupted",
        "interrupted_barrier",
        "send_beside_a_barrier",
        "forked",
        "unmatched_receive",
        "wrong_arguments",
        "second_shutdown",
    ],
)
def test_scenario(scenario: str) -> None:
    run_ranks(__file__, scenario, 2)


@pytest.mark.parametrize(
    "scenario",
    [
        "export_after_a_failure",
        "export_after_a_cancellation",
        "export_in_the_background",
        "interrupted_export",
        "states_of_all_kinds",
    ],
)
def test_exports_beside_gloo(scenario: str) -> None:
    run_ranks(__file__, scenario, 2, backend="gloo")


@pytest.mark.parametrize("scenario", ["any_source", "leaving", "one_limit_for_all_ranks"])
def test_scenario_of_three_ranks(scenario: str) -> None:
    run_ranks(__file__, scenario, 3)


def test_a_mesh_of_two_dimensions_trains_and_saves_checkpoints() -> None:
    run_ranks(__file__, "grid", 4)


def test_a_dead_rank_is_named() -> None:
    with pytest.raises(AssertionError, match="rank 1 of death exited with -9"):
        run_ranks(__file__, "death", 2)


def test_a_failed_start_waits_for_no_late_rank_and_is_known_to_it(tmp_path) -> None:
    def join(rank: int, size: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _JOIN, str(rank), str(size), str(tmp_path / "store")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    first = [join(0, 3), join(1, 4)]
    try:
        # They end long before torch's timeout, although rank 2 never came.
        for one in first:
            assert one.communicate(timeout=120)[0].startswith("MismatchError")
    finally:
        for one in first:
            one.kill()
            one.wait()
    late = join(2, 3)
    assert "could not be made" in late.communicate(timeout=120)[0]


def second_shutdown(rank: int, size: int) -> None:
    group = dist.group.WORLD
    dist.barrier()
    group.shutdown()
    group.shutdown()
    group.abort()
    dist.destroy_process_group()


class FailsDuringTheWait:
    """A request whose error arrives between two polls of it. Like those of the library, it raises its error once."""

    def __init__(self) -> None:
        self.raised = False

    def test(self) -> bool:
        return self.raised

    def wait(self, timeout: float | None = None) -> bool:
        self.raised = True
        raise ValueError("the message does not fit")


def test_an_error_that_arrives_during_a_wait_is_not_lost() -> None:
    from crossrank.torch.pending import Operations

    operations = Operations("test")
    work = operations.run(lambda: ([FailsDuringTheWait()], list), waits=False)
    with pytest.raises(ValueError, match="does not fit"):
        work.wait()
    operations.close()
