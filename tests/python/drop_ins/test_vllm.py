"""crossrank.compat.vllm: vLLM's message queue and stateless groups."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import crossrank  # noqa: E402
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
            with pytest.raises(RuntimeError, match="cancelled"):
                broadcaster.dequeue(timeout=30)
            assert broadcaster.shutting_down
            stop.join()
        stateless.barrier()
    assert stateless.all_gather_obj((rank, "x")) == [(r, "x") for r in range(size)]
    assert stateless.broadcast_obj({1, 2} if rank == 2 else None, 2) == {1, 2}
    own = {1, 2} if rank == 2 else None
    assert (stateless.broadcast_obj(own, 2) is own) == (rank == 2)
    if rank == 0:
        stateless.send_obj(b"bytes", 2)
    if rank == 2:
        assert stateless.recv_obj(0) == b"bytes"
    # Both send before either receives, as through vLLM's store.
    if rank < 2:
        for number in range(30):
            stateless.send_obj((number, b"x" * 10_000), 1 - rank)
        assert [stateless.recv_obj(1 - rank)[0] for _ in range(30)] == list(range(30))
    assert stateless.all_reduce(torch.tensor([rank, 1]), dist.ReduceOp.MAX).tolist() == [size - 1, 1]
    with pytest.raises(crossrank.UsageError, match=r"AVG.*SUM.*PRODUCT.*MIN.*MAX"):
        stateless.all_reduce(torch.ones(2), dist.ReduceOp.AVG)
    stateless.barrier()
    dist.destroy_process_group()


def test_queue_outside_a_group() -> None:
    run_ranks(__file__, "outside_a_group", 3, backend="gloo")


def outside_a_group(rank: int, size: int) -> None:
    """The writer has a queue for readers that form a group without it."""
    import torch.distributed as dist
    from crossrank.compat.vllm import MessageQueue

    workers = dist.new_group([1, 2])
    writer = MessageQueue(2, 2, max_chunk_bytes=1 << 16, max_chunks=3) if rank == 0 else None
    handle = [writer.export_handle() if writer else None]
    dist.broadcast_object_list(handle, src=0)
    if writer:
        writer.wait_until_ready()
        queue = writer
    else:
        queue = MessageQueue.create_from_process_group(workers, 0, 0, external_writer_handle=handle[0])
    for step in range(20):
        assert queue.broadcast_object((step, b"x" * 100_000) if rank == 0 else None)[0] == step
    dist.barrier()
    dist.destroy_process_group()


def test_queue_without_a_timeout_waits_longer_than_the_group() -> None:
    run_ranks(__file__, "late_message", 2, backend="gloo")


def late_message(rank: int, size: int) -> None:
    import os
    import time

    import torch.distributed as dist
    from crossrank.compat.vllm import MessageQueue

    os.environ["CROSSRANK_TIMEOUT"] = "1"
    queue = MessageQueue.create_from_process_group(dist.group.WORLD, 4096, 1)
    if rank == 0:
        time.sleep(2.5)
        for message in range(3):  # more than the ring holds: the writer waits for the reader
            queue.enqueue(message)
    else:
        assert queue.dequeue() == 0
        time.sleep(2.5)
        assert [queue.dequeue(), queue.dequeue()] == [1, 2]
    dist.barrier()
    dist.destroy_process_group()


TENSORS = {
    "bf16": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "u16": torch.arange(6).to(torch.uint16),
    "fp8": torch.ones(4).to(torch.float8_e4m3fn),
    "empty": torch.empty(0, 8),
    "scalar": torch.tensor(3.5),
    "strided": torch.arange(12).view(3, 4).t(),
    "gradient": torch.ones(2, requires_grad=True),
    "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "one element of a column": torch.arange(5.0).view(1, 5)[:, 1],
    "one element of every second": torch.arange(4)[::2][1:],
}


@pytest.mark.parametrize("name", TENSORS)
def test_queue_in_one_process_keeps_tensors(name: str) -> None:
    from crossrank.compat.vllm import MessageQueue

    sent = TENSORS[name]
    writer = MessageQueue(1, 1, max_chunk_bytes=1 << 16, max_chunks=2)
    reader = MessageQueue.create_from_handle(writer.export_handle(), rank=0)
    for end in (writer, reader):
        end.wait_until_ready()
    writer.enqueue({"tensor": sent, "other": [1, {2}]})
    message = reader.dequeue(timeout=30)
    got = message["tensor"]
    assert message["other"] == [1, {2}] and type(got) is type(sent) and got.requires_grad == sent.requires_grad
    assert got.dtype == sent.dtype and got.shape == sent.shape
    assert crossrank.as_tensor(got).tobytes() == crossrank.as_tensor(sent).tobytes()
    if not got.requires_grad and got.numel():
        got.view(-1)[0] = 1


def test_queue_keeps_tensors_on_the_cpu_whatever_the_default_device() -> None:
    from crossrank.compat.vllm import MessageQueue

    writer = MessageQueue(1, 1, max_chunk_bytes=1 << 16, max_chunks=2)
    reader = MessageQueue.create_from_handle(writer.export_handle(), rank=0)
    sent = [torch.empty(0, 8), torch.ones(3)]
    with torch.device("meta"):
        writer.enqueue(sent)
        got = reader.dequeue(timeout=30)
    assert [each.device.type for each in got] == ["cpu", "cpu"] and torch.equal(got[1], sent[1])


def coordinator(rank: int, size: int) -> None:
    from crossrank.compat.vllm import GroupCoordinator

    tp = GroupCoordinator([[0, 1], [2, 3]], rank, "gloo", True, group_name="tp")
    pp = GroupCoordinator([[0, 2], [1, 3]], rank, "gloo", True, group_name="pp")
    one = GroupCoordinator([[each] for each in range(size)], rank, "gloo", True)
    me = tp.rank_in_group
    assert (tp.first_rank, tp.last_rank) == (rank - me, rank - me + 1)
    assert pp.next_rank == pp.prev_rank == (rank + 2) % 4
    assert tp.is_first_rank == (me == 0) and tp.is_last_rank == (me == 1)
    rows = torch.arange(6.0).view(2, 3) + me
    assert torch.equal(tp.all_reduce(rows), 2 * torch.arange(6.0).view(2, 3) + 1)
    assert tp.all_gather(rows).shape == (2, 6) and tp.all_gather(rows, 0).shape == (4, 3)
    assert torch.equal(tp.reduce_scatter(rows, 0), (2 * torch.arange(6.0).view(2, 3) + 1)[me : me + 1])
    gathered = tp.gather(rows, dst=1)
    assert (gathered is None) == (me == 0) and (gathered is None or gathered.shape == (2, 6))
    several = tp.all_gatherv([rows[: me + 1], rows[: me + 1, :1]], sizes=[1, 2])
    assert [tuple(each.shape) for each in several] == [(3, 3), (3, 1)]
    assert torch.equal(tp.broadcast(torch.full((2,), float(me)), src=1), torch.ones(2))
    assert tp.broadcast_object_list([me, {me}], src=1) == [1, {1}]
    values = {"a": torch.arange(8, dtype=torch.bfloat16), "b": {1, 2}, "c": torch.empty(0), "d": (None, "text")}
    got = tp.broadcast_tensor_dict(values if me == 1 else None, src=1)
    assert list(got) == list(values) and got["b"] == {1, 2} and got["d"] == (None, "text")
    assert torch.equal(got["a"], values["a"]) and got["c"].shape == (0,)
    keyed = {3: torch.ones(2), ("a", 1): torch.zeros(1), 4: "x"}
    got = tp.broadcast_tensor_dict(keyed if me == 1 else None, src=1)
    assert list(got) == list(keyed) and torch.equal(got[3], keyed[3]) and got[4] == "x"
    turned = torch.arange(6.0).view(2, 3).t() if me == 1 else torch.zeros(2, 3).t()
    assert torch.equal(tp.broadcast(turned, src=1), torch.arange(6.0).view(2, 3).t())
    if pp.is_first_rank:
        pp.send_tensor_dict(values, all_gather_group=tp)
        pp.send(rows)
        pp.send_object({3}, 1)
    else:
        got = pp.recv_tensor_dict(all_gather_group=tp)
        assert torch.equal(got["a"], values["a"]) and got["d"] == (None, "text")
        with torch.device("meta"):
            assert pp.recv((2, 3), torch.float32).device.type == "cpu"
        assert pp.recv_object(0) == {3}
    if hasattr(torch, "float4_e2m1fn_x2"):
        packed = torch.arange(6, dtype=torch.uint8).view(2, 3).view(torch.float4_e2m1fn_x2)
        if pp.is_first_rank:
            pp.send(packed)
        else:
            assert pp.recv((2, 3), packed.dtype).view(torch.uint8).equal(packed.view(torch.uint8))
    assert one.all_reduce(rows) is rows and one.all_gather(rows) is rows and one.broadcast_tensor_dict(values) is values
    assert one.recv_tensor_dict() is None
    tp.barrier()
    for group in (tp, pp, one):
        group.destroy()


def late_rank_at_a_barrier(rank: int, size: int) -> None:
    import torch.distributed as dist
    from crossrank.compat.vllm import StatelessProcessGroup

    port = [11000 + os.getpid() % 1000 if rank == 0 else None]
    dist.broadcast_object_list(port, src=0)
    group = StatelessProcessGroup.create("127.0.0.1", int(port[0] or 0), rank, size)
    for _ in range(2):
        if rank == 0:
            with pytest.raises(RuntimeError, match="barrier within"):
                group.barrier(timeout=0.05)
        dist.barrier()  # only now do the others come
        if rank != 0:
            group.barrier()
        assert group.all_gather_obj(rank) == list(range(size))
    group.barrier()
    assert group._late_barriers == [] and group.broadcast_obj({rank}, 1) == {1}
    dist.destroy_process_group()


def test_a_barrier_that_times_out_leaves_its_group_usable() -> None:
    run_ranks(__file__, "late_rank_at_a_barrier", 3, backend="gloo")


def tensors_that_differ_between_the_ranks_of_the_all_gather_group(rank: int, size: int) -> None:
    """vLLM passes `{"residual": False}` for residuals that sequence parallelism has scattered."""
    from crossrank.compat.vllm import GroupCoordinator

    tp = GroupCoordinator([[0, 1], [2, 3]], rank, "gloo", True, group_name="tp")
    with GroupCoordinator([[0, 2], [1, 3]], rank, "gloo", True, group_name="pp") as pp:
        mine = torch.full((4,), tp.rank_in_group)
        values = {"step": 7, ("a", 1): torch.arange(4), "residual": mine, "hidden": torch.arange(2)}
        choices = {"residual": False, "absent": True, "step": True}
        if pp.is_first_rank:
            pp.send_tensor_dict(values, all_gather_group=tp, all_gather_tensors=choices)
            pp.send_tensor_dict({"odd": torch.ones(3)}, all_gather_group=tp, all_gather_tensors={"even": True})
            with pytest.raises(crossrank.UsageError, match="divisible"):
                pp.send_tensor_dict({"odd": torch.ones(3)}, all_gather_group=tp, all_gather_tensors={"odd": True})
        else:
            got = pp.recv_tensor_dict(all_gather_group=tp, all_gather_tensors=choices)
            assert list(got) == list(values) and torch.equal(got["residual"], mine), got
            assert torch.equal(got[("a", 1)], torch.arange(4)) and torch.equal(got["hidden"], torch.arange(2))
            assert pp.recv_tensor_dict(all_gather_group=tp)["odd"].numel() == 3
            with pytest.raises(crossrank.RemoteError, match="divisible"):
                pp.recv_tensor_dict(all_gather_group=tp)
    with pytest.raises(crossrank.UsageError):
        pp.barrier()
    tp.destroy()


def test_tensors_that_differ_between_the_ranks_of_the_all_gather_group() -> None:
    run_ranks(__file__, "tensors_that_differ_between_the_ranks_of_the_all_gather_group", 4, backend="gloo")


def dicts_on_their_way(rank: int, size: int) -> None:
    """Both stages start their sends before either receives, and no send blocks, however large its dict is."""
    from crossrank.compat.vllm import GroupCoordinator

    tp = GroupCoordinator([[0, 1], [2, 3]], rank, "gloo", True, group_name="tp")
    pp = GroupCoordinator([[0, 2], [1, 3]], rank, "gloo", True, group_name="pp")
    one = GroupCoordinator([[each] for each in range(size)], rank, "gloo", True)
    stage = pp.rank_in_group
    sending = []
    for step in range(3):
        values = {"step": step, "hidden": torch.full((1 << 20,), float(10 * stage + step)), ("a", 1): torch.arange(2)}
        sending += pp.isend_tensor_dict(values, all_gather_group=tp, all_gather_tensors={("a", 1): False})
    received = [pp.irecv_tensor_dict(all_gather_group=tp) for _ in range(3)]
    for step, (values, handles, afterwards) in enumerate(received):
        if step == 1:
            while not all(handle.is_completed() for handle in handles):
                time.sleep(0.001)
        for handle in handles:
            handle.wait()
        for call in afterwards:
            call()
        assert values is not None and list(values) == ["step", "hidden", ("a", 1)] and values["step"] == step
        assert torch.equal(values["hidden"], torch.full((1 << 20,), float(10 * (1 - stage) + step)))
        assert torch.equal(values[("a", 1)], torch.arange(2))
    for handle in sending:
        handle.wait()
        assert handle.is_completed()
    assert one.isend_tensor_dict({"a": 1}) == [] and one.irecv_tensor_dict() == (None, [], [])
    bad = {"lock": threading.Lock()}
    if stage == 0:
        with pytest.raises(TypeError):
            pp.isend_tensor_dict(bad)
        pp.send_tensor_dict({"after": 1})
    else:
        _, handles, _ = pp.irecv_tensor_dict()
        with pytest.raises(crossrank.RemoteError):
            handles[0].wait()
        assert pp.recv_tensor_dict() == {"after": 1}
    for group in (tp, pp, one):
        group.destroy()


def dicts_whose_handles_are_dropped(rank: int, size: int) -> None:
    """vLLM's worker keeps only the handles after the first, and waits for them before it overwrites the tensors."""
    from crossrank.compat.vllm import GroupCoordinator

    with GroupCoordinator([[0, 1]], rank, "gloo", True) as pp:
        if rank == 0:
            hidden = torch.empty(100_000)
            waiting: list[Any] = []
            for step in range(12):
                for handle in waiting:
                    handle.wait()
                hidden.fill_(step)
                waiting = pp.isend_tensor_dict({"step": step, "hidden": hidden})[1:]
                assert waiting
            for step in range(12, 24):
                pp.isend_tensor_dict({"step": step, "hidden": torch.full((10,), float(step))})
            pp.send_tensor_dict({"step": 24, "hidden": torch.full((10,), 24.0)})
            pp.barrier()
        else:
            for step in range(25):
                if step % 5 == 0:
                    time.sleep(0.01)
                got = pp.recv_tensor_dict()
                assert got is not None and got["step"] == step and torch.all(got["hidden"] == step)
            pp.barrier()


def test_dicts_whose_handles_are_dropped() -> None:
    run_ranks(__file__, "dicts_whose_handles_are_dropped", 2, backend="gloo")


def call_sites_of_vllm(rank: int, size: int) -> None:
    """The arguments that vLLM 0.33 passes."""
    import torch.distributed as dist
    from crossrank.compat.vllm import GroupCoordinator, MessageQueue, StatelessProcessGroup

    group = GroupCoordinator([[0, 1]], rank, "gloo", True, group_name="ep", use_all2all=True)
    own = {"own": rank}
    assert (group.broadcast_object(own, src=1) is own) == (rank == 1)
    group.destroy()
    port = [13000 + os.getpid() % 1000 if rank == 0 else None]
    dist.broadcast_object_list(port, src=0)
    stateless = StatelessProcessGroup.create("127.0.0.1", int(port[0] or 0), rank, size, listen_socket=None)
    stateless.barrier()
    writer = MessageQueue(1, 1, [0], 1 << 16, 4, None, enable_shm_tensor_arena=True)
    reader = MessageQueue.create_from_handle(writer.export_handle(), rank=0)
    for end in (writer, reader):
        end.wait_until_ready()
    with pytest.raises(TimeoutError):
        reader.dequeue(-1)
    writer.enqueue(1)
    assert reader.dequeue(-1) == 1
    threading.Timer(0.2, writer.enqueue, [2]).start()
    assert reader.dequeue(0.01, True) == 2
    threading.Timer(0.2, writer.enqueue, [3]).start()
    assert reader.dequeue(0.01, True, cancel=threading.Event()) == 3
    dist.destroy_process_group()


def test_call_sites_of_vllm() -> None:
    run_ranks(__file__, "call_sites_of_vllm", 2, backend="gloo")


def test_dicts_on_their_way() -> None:
    run_ranks(__file__, "dicts_on_their_way", 4, backend="gloo")


def dicts_that_cannot_be_sent(rank: int, size: int) -> None:
    from crossrank.compat.vllm import GroupCoordinator

    group = GroupCoordinator([[0, 1]], rank, "gloo", True)
    bad = {"tensor": torch.ones(2), "lock": threading.Lock()}
    for call in (
        lambda: group.broadcast_tensor_dict(bad if rank == 0 else None),
        lambda: group.broadcast_tensor_dict(None),
        lambda: group.send_tensor_dict(bad) if rank == 0 else group.recv_tensor_dict(),
    ):
        with pytest.raises((TypeError, crossrank.UsageError) if rank == 0 else crossrank.RemoteError):
            call()
    assert group.broadcast_tensor_dict({"a": {1}} if rank == 0 else None) == {"a": {1}}
    group.destroy()


def test_dicts_that_cannot_be_sent() -> None:
    run_ranks(__file__, "dicts_that_cannot_be_sent", 2, backend="gloo")


def test_coordinator() -> None:
    run_ranks(__file__, "coordinator", 4, backend="gloo")


def test_queue() -> None:
    run_ranks(__file__, "queue", 3, backend="gloo")
