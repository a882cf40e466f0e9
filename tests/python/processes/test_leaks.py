"""Many rounds of every part of the package leave no descriptor, no name in shared memory and no memory."""

import leftovers
import pytest

pytest.importorskip("numpy")

COUNT = """
import os, time
import numpy
n, r = world.world_size, world.rank
def descriptors():
    return len(os.listdir("/proc/self/fd"))
def memory_in_use():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def repeat(step, rounds):
    for _ in range(rounds): step()
    world.barrier()
    before = descriptors(), memory_in_use()
    for _ in range(4 * rounds): step()
    world.barrier()
    until = time.monotonic() + 5  # a thread that has read a file may still close it
    while descriptors() > before[0] and time.monotonic() < until: time.sleep(0.01)
    after = descriptors(), memory_in_use()
    assert after[0] <= before[0], ("descriptors", before, after)
    assert after[1] - before[1] < 8 << 20, ("bytes", before, after)
"""

STEPS = {
    "queue": (200, """
def step():
    with crossrank.MessageQueue.create(world, chunk_bytes=1 << 16, chunks=2) as queue:
        for _ in range(3):
            if queue.is_writer: queue.enqueue_dict({"t": value, "step": 1})
            else: assert queue.dequeue_dict()["t"].shape == value.shape
"""),
    "messages of a queue": (2000, """
queue = crossrank.MessageQueue.create(world, chunk_bytes=1 << 16)
def step():
    if queue.is_writer: queue.enqueue_dict({"t": value, "long": bytes(1 << 17)})
    else: assert len(queue.dequeue_dict()["long"]) == 1 << 17
"""),
    "shared memory": (1000, """
shared = crossrank.SharedMemoryWorkspace(world)
def step():
    shared.write_configs_and_weights({"rank": r}, {"w": value, "mine": shared.zeros((100,), "F32")})
    world.barrier()
    assert shared.read_configs_and_weights_from_rank(1 - r)[1]["w"].numpy()[0] == 0
    world.barrier()
"""),
    "files": (100, """
def step():
    files = crossrank.NFSWorkspace("states", rank=r)
    files.write_configs_and_weights({"rank": r}, {"w": value})
    world.barrier()
    assert files.read_configs_and_weights_from_rank(1 - r)[0] == {"rank": 1 - r}
    world.barrier()
"""),
    "coordinator": (1000, """
tp = crossrank.GroupCoordinator.create(world, [[0, 1]], broadcaster=True)
def step():
    tp.all_gather(value, dim=0)
    tp.broadcast_tensor_dict({"t": value, "n": [1, None]} if r == 0 else None)
    tp.broadcast_object({"k": "v"})
"""),
    "coordinators": (50, """
def step():
    tp = crossrank.GroupCoordinator.create(world, [[0, 1]], broadcaster=True)
    tp.all_reduce(value)
    tp.destroy()
"""),
    "groups": (200, """
def step():
    with world.split([[0, 1]]) as group:
        group.all_gather_objects({"rank": r})
"""),
    "exceptions": (500, """
def fail(): raise ValueError("x" * 1000)
def step():
    try: crossrank.compute_and_broadcast(world, fail)
    except (ValueError, crossrank.RemoteError): pass
"""),
    "load": (500, """
crossrank.save(f"model{r}.safetensors", {"w": value, "v": numpy.ones(1 << 18)})
def step():
    weights = crossrank.load(f"model{r}.safetensors")
    assert weights["v"].numpy()[-1] == 1 and weights["w"].clone().shape == value.shape
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_rounds_leak_nothing(ranks, name):
    before = leftovers.names()
    rounds, program = STEPS[name]
    ranks(2, COUNT + "value = numpy.zeros(1000, numpy.float32)\n" + program + f"repeat(step, {rounds})\n")
    assert not leftovers.names_left_since(before)


def torch_rounds(rank: int, size: int) -> None:
    import os

    import torch
    import torch.distributed as dist

    value = torch.ones(1000)

    def collectives() -> None:
        dist.all_reduce(value)
        dist.all_reduce(value, async_op=True).wait()
        dist.broadcast(value, src=0)
        value.fill_(1)

    def groups() -> None:
        group = dist.new_group([0, 1])
        dist.all_reduce(value, group=group)
        dist.destroy_process_group(group)

    def in_use() -> tuple[int, int]:
        with open("/proc/self/statm") as file:
            return len(os.listdir("/proc/self/fd")), int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for step, rounds in ((collectives, 500), (groups, 20)):
        for _ in range(rounds):
            step()
        dist.barrier()
        before = in_use()
        for _ in range(4 * rounds):
            step()
        dist.barrier()
        after = in_use()
        assert after[0] <= before[0], (step, before, after)
        assert after[1] - before[1] < 8 << 20, (step, before, after)
    dist.destroy_process_group()


def test_rounds_of_the_backend_of_torch_leak_nothing():
    pytest.importorskip("torch")
    from torch_ranks import run_ranks

    before = leftovers.names()
    run_ranks(__file__, "torch_rounds", 2)
    assert not leftovers.names_left_since(before)
