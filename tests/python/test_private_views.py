"""torch() of tensors that other ranks own: a private view of their pages, which copies only what is written."""

import pytest

pytest.importorskip("torch")

PRELUDE = """
import os, re
import torch

def mapping(tensor):
    "Returns the rights and the file of the mapping that holds a tensor, and the KiB in it that are this process's own."
    found = None
    for line in open("/proc/self/smaps"):
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\\S+) \\S+ \\S+ \\S+ *(.*)", line):
            if found: break
            inside = int(head[1], 16) <= tensor.data_ptr() < int(head[2], 16)
            found = [head[3], head[4], None] if inside else None
        elif found and line.startswith("Anonymous:"):
            found[2] = int(line.split()[1])
    return found

def received(tensor):
    "Returns the tensor of rank 1, on rank 0."
    items = crossrank.get_tensors_parallel(tensor, group=world).take()
    return items[1] if items else None

rank = world.rank
"""


def test_is_no_copy(ranks):
    ranks(
        2,
        PRELUDE
        + """
got = received(torch.arange(1 << 19))
if rank == 0:
    view = got.torch()
    assert view.sum() == ((1 << 19) - 1) * (1 << 18)
    rights, file, own = mapping(view)
    assert rights == "rw-p" and "crossrank" in file and own == 0, (rights, file, own)
    view[0] = -1
    assert 0 < mapping(view)[2] <= 64, mapping(view)
    assert view[0] == -1 and got.numpy()[0] == 0 and got.torch()[0] == 0
world.barrier()
""",
    )


def test_of_a_small_tensor_is_a_copy(ranks):
    ranks(
        2,
        PRELUDE
        + """
got = received(torch.arange(4))
if rank == 0:
    view = got.torch()
    view[0] = -1
    assert "crossrank" not in mapping(view)[1] and got.numpy()[0] == 0
world.barrier()
""",
    )


def test_of_a_long_message_is_no_copy(ranks):
    ranks(
        2,
        PRELUDE
        + """
queue = crossrank.MessageQueue.create(world, writer_rank=1, chunk_bytes=4096)
sent = torch.arange(1 << 17)
if rank == 1:
    queue.enqueue_tensor(sent)
    queue.enqueue_dict({"step": 3, "w": sent})
    queue.close()
else:
    for got in (queue.dequeue_tensor(), queue.dequeue_dict()["w"]):
        view = got.torch()
        assert torch.equal(view, sent) and mapping(view)[0] == "rw-p" and mapping(view)[2] == 0, mapping(view)
world.barrier()
""",
    )


def test_keeps_the_senders_memory_even_after_fork(ranks):
    ranks(
        2,
        PRELUDE
        + """
mine = crossrank.SharedMemoryWorkspace(world).empty((1 << 17,), "I64")
mine.numpy()[:] = 7
got = received(mine)
view = got.torch() if rank == 0 else None
del got
if rank == 0:
    child = os.fork()
    if child == 0:
        view[:] = 5
        wrote = bool((view == 5).all())
        del view
        os._exit(0 if wrote else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (view == 7).all()
    view[:] = 9
world.barrier()
if rank == 1: assert mine.readonly and (mine.numpy() == 7).all()
world.barrier()
del view
world.barrier()
assert not mine.readonly
mine.numpy()[:] = 8
last = received(mine)
at_exit = last.torch() if rank == 0 else None  # lives until the interpreter ends
world.barrier()
""",
    )


def test_leaks_nothing(ranks):
    ranks(
        2,
        PRELUDE
        + """
value = torch.ones(1 << 16)
def in_use():
    return len(os.listdir("/proc/self/fd")), sum(1 for _ in open("/proc/self/maps"))
def gather(times):
    for _ in range(times):
        got = received(value)
        if got is not None: got.torch().add_(1)
        del got
gather(50)
before, grown = in_use(), crossrank.statistics()["arena_growths"]
gather(1000)
assert in_use()[0] == before[0] and in_use()[1] <= before[1] + 5, (before, in_use())
assert crossrank.statistics()["arena_growths"] == grown
world.barrier()
""",
    )
