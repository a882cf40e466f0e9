"""The operations of the backend "crossrank" of torch.distributed."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
import crossrank  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

if TYPE_CHECKING:
    from crossrank.torch.pending import Operations, OperationWork

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
    large = torch.full((3,), 60000.0, dtype=torch.float16)  # the sum is beyond its range
    dist.all_reduce(large, op=dist.ReduceOp.AVG)
    assert torch.equal(large, torch.full((3,), 60000.0, dtype=torch.float16))
    wave = torch.full((2,), complex(rank, 1))
    dist.all_reduce(wave, op=dist.ReduceOp.AVG)
    assert torch.equal(wave, torch.full((2,), complex((size - 1) / 2, 1)))
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
    assert works[0]._source_rank() == left
    with pytest.raises(RuntimeError, match="receive"):
        works[1]._source_rank()
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
    with pytest.raises(RuntimeError, match="splitting"):
        dist.split_group(split_ranks=[[r] for r in range(size)])
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
    parts = [torch.empty(2) for _ in range(size)]
    gather = dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True)
    joined = gather.get_future().then(lambda future: torch.cat(future.value())).wait()
    assert torch.equal(joined, torch.arange(float(size)).repeat_interleave(2))
    assert torch.equal(torch.cat(gather.result()), joined)
    even = dist.new_group(list(range(0, size, 2)))
    if rank % 2 == 0:
        own = torch.tensor([rank])
        dist.all_reduce(own, group=even)
        assert own.item() == sum(range(0, size, 2))
        dist.barrier(group=even)
    dist.barrier()
    dist.destroy_process_group()


def compiled_collectives(rank: int, size: int) -> None:
    def exchange(tensor: torch.Tensor) -> torch.Tensor:
        if rank == 0:
            dist.send(tensor * 2, 1)
        elif rank == 1:
            tensor = torch.zeros_like(tensor)
            dist.recv(tensor, 0)
        return tensor + 1

    def reduce(tensor: torch.Tensor) -> torch.Tensor:
        work = dist.all_reduce(tensor, async_op=True)
        wave = tensor.new_ones(3).sin()
        work.wait()
        return tensor + wave

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.zeros(3) for _ in range(size)]
        dist.all_gather(parts, tensor)
        dist.broadcast(tensor, 0)
        dist.gather(tensor, parts if rank == 0 else None, 0)
        dist.scatter(tensor, parts if rank == 0 else None, 0)
        dist.reduce(tensor, 0)
        return parts[1] + tensor

    for function in [exchange, reduce, gather]:
        compiled = torch.compile(function, backend="eager")
        for step in range(3):
            expected = function(torch.full((3,), float(rank + step)))
            assert torch.equal(compiled(torch.full((3,), float(rank + step))), expected)
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


def sparse(rank: int, size: int) -> None:
    mine = torch.sparse_coo_tensor([[rank, 0]], [float(rank + 1), 1.0], (size,))
    dist.all_reduce(mine)
    dense = torch.arange(1.0, size + 1)
    dense[0] += size
    assert torch.equal(mine.to_dense(), dense), mine
    for op in (dist.ReduceOp.AVG, dist._make_nccl_premul_sum(2.0)):
        with pytest.raises(ValueError, match="sparse"):
            dist.all_reduce(mine, op=op)
    dist.destroy_process_group()


def sparse_beside_messages(rank: int, size: int) -> None:
    """A peer comes to an asynchronous reduction only after a message of this rank."""
    mine = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    message = torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(mine, async_op=True)
        dist.send(torch.ones(1), 1)
        assert work is not None and work.wait()
    else:
        dist.recv(message, 0)
        assert message.item() == 1
        dist.all_reduce(mine)
    assert torch.equal(mine.to_dense(), torch.ones(size))
    several = [mine.clone() for _ in range(3)]
    works = [dist.all_reduce(one, async_op=True) for one in several]
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    assert all(work is not None and work.wait() for work in works)
    assert all(torch.equal(one.to_dense(), torch.full((size,), float(size))) for one in several)
    dist.destroy_process_group()


def sparse_and_dense(rank: int, size: int) -> None:
    """Ranks that reduce different tensors learn it at once."""
    mine = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    with pytest.raises(crossrank.MismatchError):
        dist.all_reduce(mine if rank == 0 else torch.ones(size))


def sparse_after_the_end(rank: int, size: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    mine = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    group.shutdown()
    with pytest.raises(RuntimeError, match="destroyed"):
        group.allreduce([mine], dist.AllreduceOptions()).wait()
    group.abort()


def dropped_handles(rank: int, size: int) -> None:
    """A handle without a wait does not keep long tensors."""
    left = []
    for polled in (False, True):
        for _ in range(4):
            tensor = torch.ones(3000)
            left.append(weakref.ref(tensor))
            work = dist.all_reduce(tensor, async_op=True)
            while polled and not work.is_completed():
                time.sleep(0.001)
            del work, tensor
        dist.barrier()
    until = time.monotonic() + 30
    while any(one() is not None for one in left) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(one() is None for one in left)
    dist.destroy_process_group()


def factor(rank: int, size: int) -> None:
    half = dist._make_nccl_premul_sum(0.5)
    for dtype in (torch.int64, torch.float32, torch.complex64):
        total = torch.arange(size * 2).to(dtype)
        dist.all_reduce(total, op=half)
        own = slice(rank * 2, rank * 2 + 2)
        one, other = torch.empty(2, dtype=dtype), torch.empty(2, dtype=dtype)
        dist.reduce_scatter_tensor(one, torch.arange(size * 2).to(dtype), op=half)
        dist.reduce_scatter(other, list(torch.arange(size * 2).to(dtype).chunk(size)), op=half)
        assert torch.equal(one, total[own]) and torch.equal(other, total[own])
    dist.destroy_process_group()


def unmatched_receive(rank: int, size: int) -> None:
    works = [dist.irecv(torch.empty(1), 1 - rank), dist.irecv(torch.empty(1))]
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    for work in works:
        with pytest.raises(crossrank.CancelledError):
            work.wait()


def short_forms(rank: int, size: int) -> None:
    """The forms with one tensor, and with values in place of options, as torch's own code and its stubs have them."""
    group = dist.group.WORLD
    mine = torch.arange(6.0).reshape(2, 3) + 10 * rank
    everyone = [torch.arange(6.0).reshape(2, 3) + 10 * other for other in range(size)]

    def outputs(wanted: bool = True) -> list[torch.Tensor]:
        return [torch.zeros(2, 3) for _ in range(size if wanted else 0)]

    out = outputs()
    group.allgather(out, mine.clone()).wait()
    assert all(map(torch.equal, out, everyone))
    out = outputs(rank == 1)
    group.gather(out, mine.clone(), 1).wait()
    assert len(out) == 0 or all(map(torch.equal, out, everyone))
    got = torch.zeros(2, 3)
    group.scatter(got, everyone if rank == 0 else [], root=0).wait()
    assert torch.equal(got, mine)
    group.reduce_scatter(got, [part.clone() for part in everyone], dist.ReduceOp.MAX).wait()
    assert torch.equal(got, mine)
    for reduce in (
        lambda tensor: group.allreduce(tensor, dist.ReduceOp.MAX),
        lambda tensor: group.allreduce([tensor], op=dist.ReduceOp.MAX, timeout=timedelta(seconds=30)),
        lambda tensor: group.broadcast(tensor, size - 1),
        lambda tensor: group.broadcast(tensor, root=size - 1),
    ):
        tensor = mine.clone()
        reduce(tensor).wait()
        assert torch.equal(tensor, everyone[-1])
    tensor = mine.clone()
    group.reduce(tensor, 0, dist.ReduceOp.SUM).wait()
    assert torch.equal(tensor, sum(everyone) if rank == 0 else mine)
    number = torch.tensor(float(rank))
    group.allreduce(number).wait()
    assert number.item() == sum(range(size))
    group.barrier(timedelta(seconds=30)).wait()
    with pytest.raises(TypeError, match="unexpected argument 'opp'"):
        group.allreduce(number, opp=dist.ReduceOp.MAX)


def handles_without_their_python_half(rank: int, size: int) -> None:
    """Torch's C++ code keeps a handle whose Python object is gone, and waits for it later."""
    tensor = torch.ones(3)
    boxed = dist.all_reduce(tensor, async_op=True).boxed()
    dist.barrier()
    handle = torch._C._distributed_c10d.Work.unbox(boxed)
    assert handle.wait()
    assert tensor.tolist() == [size] * 3


def errors_are_runtime_errors(rank: int, size: int) -> None:
    for kind in (crossrank.TimeoutError, crossrank.PeerLostError, crossrank.MismatchError, crossrank.UsageError):
        assert issubclass(kind, RuntimeError)
    with pytest.raises(RuntimeError, match="all_reduce"):
        dist.all_reduce(torch.zeros(2 + rank))


@pytest.mark.parametrize("scenario", [short_forms, handles_without_their_python_half, errors_are_runtime_errors])
def test_what_torch_itself_expects(scenario) -> None:
    run_ranks(__file__, scenario.__name__, 3)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective(ranks: int) -> None:
    run_ranks(__file__, "every_collective", ranks)


@pytest.mark.parametrize(
    "scenario",
    [
        "point_to_point",
        "wrong_arguments",
        "asynchronous",
        "compiled_collectives",
        "nested_callbacks",
        "send_beside_a_barrier",
        "in_place",
        "sparse",
        "sparse_beside_messages",
        "sparse_and_dense",
        "sparse_after_the_end",
        "dropped_handles",
        "factor",
        "unmatched_receive",
    ],
)
def test_scenario(scenario: str) -> None:
    run_ranks(__file__, scenario, 2)


def test_a_receive_from_any_source() -> None:
    run_ranks(__file__, "any_source", 3)


class FailsDuringTheWait:
    """A request whose error arrives between two polls of it. Like those of the library, it raises its error once."""

    def __init__(self) -> None:
        self.raised = False

    def test(self) -> bool:
        return self.raised

    def wait(self, timeout: float | None = None) -> bool:
        self.raised = True
        raise ValueError("the message does not fit")


def coalesced_reductions(rank: int, size: int) -> None:
    several = [torch.full((3,), float(rank)), torch.full((2, 2), float(rank + 1))]
    dist.all_reduce_coalesced(several)
    total = size * (size - 1) // 2
    assert torch.all(several[0] == total) and torch.all(several[1] == total + size)
    with dist.distributed_c10d._coalescing_manager():
        for tensor in several:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    assert torch.all(several[0] == total)
    dist.destroy_process_group()


def lists_that_change(rank: int, size: int) -> None:
    """The program uses its lists again while the operations are under way."""
    for _ in range(20):
        parts = [torch.full((8,), float(index)) for index in range(size)]
        own = torch.zeros(8)
        work = dist.reduce_scatter(own, parts, async_op=True)
        parts[:] = [torch.full((8,), -1.0) for _ in range(size)]
        outputs = [torch.zeros(8) for _ in range(size)] if rank == 0 else None
        gathered = list(outputs or [])
        gathering = dist.gather(torch.full((8,), float(rank)), outputs, 0, async_op=True)
        if outputs:
            outputs.clear()
        scattered = torch.zeros(8)
        sent = [torch.full((8,), float(index)) for index in range(size)] if rank == 0 else None
        scattering = dist.scatter(scattered, sent, 0, async_op=True)
        if sent:
            sent[:] = [torch.full((8,), -1.0) for _ in range(size)]
        for each in (work, gathering, scattering):
            each.wait()
        assert torch.all(own == rank * size)
        assert all(torch.all(each == index) for index, each in enumerate(gathered))
        assert torch.all(scattered == rank)
    dist.destroy_process_group()


def split_sizes_that_change(rank: int, size: int) -> None:
    """The program uses its lists again while the operation is under way."""
    other = torch.ones(1)
    for _ in range(20):
        before = dist.all_reduce(other, async_op=True)
        own, given = torch.empty(2 * size), torch.full((2 * size,), float(rank))
        receive, send = [2] * size, [2] * size
        work = dist.all_to_all_single(own, given, receive, send, async_op=True)
        assert before is not None and work is not None
        if rank == 0:
            receive[:] = send[:] = [0] * size
        before.wait()
        work.wait()
        assert own.tolist() == [float(each) for each in range(size) for _ in range(2)]
    with pytest.raises(Exception, match="split"):
        dist.all_to_all_single(own, given, [1] * (size + 1), None, async_op=True)
    dist.destroy_process_group()


def operation_in_a_signal_handler(rank: int, size: int) -> None:
    """The thread is inside another operation, so that the handler's could never begin."""
    errors = []

    def handler(*_: object) -> None:
        try:
            dist.barrier()
        except crossrank.UsageError as error:
            errors.append(str(error))

    signal.signal(signal.SIGUSR1, handler)
    if rank == 0:
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGUSR1]).start()
    else:
        time.sleep(1)
    dist.all_reduce(torch.ones(1))
    assert len(errors) == (1 if rank == 0 else 0) and all("signal handler" in error for error in errors)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "name", ["coalesced_reductions", "lists_that_change", "split_sizes_that_change", "operation_in_a_signal_handler"]
)
def test_use_that_gloo_allows(name: str) -> None:
    run_ranks(__file__, name, 2)


def test_a_thread_that_cannot_start_leaves_the_group_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    from crossrank.torch.pending import Operations

    operations = Operations("thread")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            operations.run(lambda: ([], list), waits=False)
    assert operations.run(lambda: ([], lambda: [1]), waits=True).result() == [1]
    assert operations.run(lambda: ([], lambda: [2]), waits=False).wait()
    operations.close()


def test_a_wait_that_takes_too_long_raises_an_error_of_crossrank() -> None:
    from crossrank.torch.pending import Operations, OperationWork

    work = OperationWork(Operations("late"))
    with pytest.raises(crossrank.TimeoutError, match="not completed"):
        work.wait(timedelta(milliseconds=10))


def test_an_error_that_arrives_during_a_wait_is_not_lost() -> None:
    from crossrank.torch.pending import Operations

    operations = Operations("test")
    work = operations.run(lambda: ([FailsDuringTheWait()], list), waits=False)
    with pytest.raises(ValueError, match="does not fit"):
        work.wait()
    operations.close()


class EndsWhenTold:
    """A request that ends when the test says so, and counts its polls."""

    def __init__(self) -> None:
        self.ended = False
        self.polls = 0

    def test(self) -> bool:
        self.polls += 1
        return self.ended

    def wait(self, timeout: float | None = None) -> bool:
        return self.ended


def pausing(request: EndsWhenTold, monkeypatch: pytest.MonkeyPatch) -> tuple[Operations, OperationWork]:
    """Runs an operation whose thread soon pauses for longer than a test takes."""
    from crossrank.torch import pending

    monkeypatch.setattr(pending, "_LONGEST_PAUSE", 600.0)
    monkeypatch.setattr(pending, "_PAUSE_PART", 1e-6)
    operations = pending.Operations("test")
    work = operations.run(lambda: ([request], list), waits=False)
    end = time.monotonic() + 30
    while request.polls == 0 and time.monotonic() < end:
        time.sleep(0.001)
    return operations, work


def test_an_operation_that_nobody_waits_for_is_seldom_polled(monkeypatch) -> None:
    request = EndsWhenTold()
    operations, work = pausing(request, monkeypatch)
    time.sleep(0.2)
    assert request.polls < 10
    request.ended = True
    work.wait()
    operations.close()


def test_a_new_operation_ends_the_pause_of_the_thread(monkeypatch) -> None:
    request = EndsWhenTold()
    operations, work = pausing(request, monkeypatch)
    operations.run(lambda: ([], list), waits=False).wait(timedelta(seconds=30))
    request.ended = True
    operations.close()
    assert work.is_success()


@pytest.mark.parametrize("expect", ["wait", "get_future", "is_completed"])
def test_waiting_for_an_operation_ends_the_pause_of_the_thread(expect: str, monkeypatch) -> None:
    request = EndsWhenTold()
    operations, work = pausing(request, monkeypatch)
    request.ended = True
    if expect == "wait":
        work.wait(timedelta(seconds=30))
    elif expect == "get_future":
        work.get_future().wait()
    else:
        end = time.monotonic() + 30
        while not work.is_completed():
            assert time.monotonic() < end
    operations.close()
