"""Handles in a forked child, and handles that are cancelled while they wait."""

import threading

import crossrank
import pytest

pytest.importorskip("numpy")


def test_a_forked_child_can_use_no_handle_of_its_parent(ranks):
    ranks(
        2,
        """
import os
import numpy
queue = crossrank.MessageQueue.create(world)
tp = crossrank.GroupCoordinator.create(world, [[0, 1]], broadcaster=True)
shared = crossrank.SharedMemoryWorkspace(world)
shared.write_configs_and_weights({"rank": world.rank}, {"w": numpy.ones(1000)})
world.barrier()
other = 1 - world.rank
_, weights = shared.read_configs_and_weights_from_rank(other)
calls = {
    "queue": (lambda: queue.enqueue_bytes(b"child")) if queue.is_writer else (lambda: queue.dequeue_bytes(timeout=60)),
    "coordinator": lambda: tp.all_reduce(numpy.ones(3)),
    "dictionary": lambda: tp.broadcast_tensor_dict({"a": 1}),
    "write": lambda: shared.write_configs_and_weights(None, {"w": numpy.zeros(1000)}),
    "read": lambda: shared.read_configs_and_weights_from_rank(other),
    "empty": lambda: shared.empty((3,), "F32"),
    "gather": lambda: crossrank.get_tensors_parallel(numpy.ones(3), group=world).take(),
    "split": lambda: world.split([[0, 1]]),
}
child = os.fork()
if child == 0:
    failed = 0
    for name, call in calls.items():
        try: call()
        except crossrank.UsageError: continue
        except BaseException as error: print(name, repr(error), flush=True)
        else: print(name, "returned", flush=True)
        failed = 1
    if not (weights["w"].numpy() == 1).all(): failed = 1  # memory that was mapped stays readable
    os._exit(failed)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
if queue.is_writer: queue.enqueue_bytes(b"parent")
else: assert queue.dequeue_bytes() == b"parent"
assert tp.all_reduce(numpy.ones(3)).numpy()[0] == 2
assert shared.read_configs_and_weights_from_rank(other)[0] == {"rank": other}
world.barrier()
""",
    )


def test_a_forked_child_that_writes_files_is_a_second_writer_of_its_rank(ranks):
    ranks(
        1,
        """
import os
import numpy
files = crossrank.NFSWorkspace("states", rank=0)
files.write_configs_and_weights({"by": "parent"}, {"w": numpy.ones(3)})
child = os.fork()
if child == 0:
    for _ in range(4):  # a workspace keeps its two newest files
        files.write_configs_and_weights({"by": "child"}, {"w": numpy.ones(3)})
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
try: files.read_configs_and_weights_from_rank(0)
except crossrank.FormatError as error: assert "two writers" in str(error), error
else: raise AssertionError("one of two states was taken for that of the rank")
""",
    )


@pytest.mark.parametrize("read", ["dequeue_bytes", "dequeue_dict", "dequeue_tensor"])
def test_a_cancelled_queue_ends_the_wait_of_another_thread(read):
    with crossrank.connect(rank=0, world_size=1, timeout=60) as world:
        queue = crossrank.MessageQueue.create_writer(world, readers=1)
        reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
        told: list[BaseException] = []

        def wait():
            try:
                getattr(reader, read)(timeout=60)
            except crossrank.Error as error:
                told.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        reader.cancel()
        waiting.join(timeout=30)
        assert not waiting.is_alive()
        assert [type(error) for error in told] == [crossrank.CancelledError]
        with pytest.raises(crossrank.CancelledError):
            reader.dequeue_bytes()


@pytest.mark.parametrize("handle", ["mesh['tp']", "job.local", "job.mesh"])
def test_a_group_lets_other_threads_run_while_its_handle_is_dropped(ranks, handle):
    ranks(
        1,
        f"""
import sys, threading
mesh = crossrank.Mesh(world, {{"tp": 1}})
job = crossrank.MeshCollective(world)
may_run, ran = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: may_run.wait() and ran.set())
thread.start()
sys.setswitchinterval(1e6)  # from here on, the other thread runs only when this one gives it the interpreter
may_run.set()
while not ran.is_set(): {handle}
thread.join()
""",
        timeout=60,
    )
