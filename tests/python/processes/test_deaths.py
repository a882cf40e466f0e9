"""Ranks that are killed inside of a gather, a queue, a workspace or a coordinator. The others get an error that names them."""

import leftovers
import pytest

pytest.importorskip("numpy")

LOSS = """
import os, signal, sys, time
import numpy
n, r = world.world_size, world.rank
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def lost(call, dead):
    start = time.monotonic()
    try:
        while True: call()
    except crossrank.PeerLostError as error:
        assert list(error.failed_ranks) == [dead], error
        assert f"rank {dead}" in str(error), error
        assert time.monotonic() - start < 30, "not at once, but after the timeout"
    print("survived", flush=True)
"""


@pytest.fixture
def survivors(ranks):
    """Returns a function that runs a program on three ranks, of which one is killed, and checks what the others print."""
    before = leftovers.names()

    def run(program, **values):
        constants = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        done = ranks(3, LOSS + constants + program, check=False)
        assert done.stdout.count("survived") == 2, done.stdout + done.stderr
        assert "AssertionError" not in done.stderr, done.stderr
        return done

    yield run
    assert not leftovers.names_left_since(before)


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("kind", ["tensors", "configs", "files"])
def test_in_a_gather(survivors, kind, dead):
    survivors(
        """
mine = numpy.full(1 << 16, r)
def gather():
    if kind == "tensors": return crossrank.get_tensors_parallel(mine, group=world)
    path = "" if kind == "configs" else "exchange"
    return crossrank.get_configs_parallel({"rank": r}, {"w": mine}, group=world, workspace_path=path)
def dies_inside():
    with gather() as items:
        if r == dead: die()
        if r == 0: list(items)
for _ in range(3):
    with gather() as items: list(items)
lost(dies_inside, dead)
""",
        kind=kind,
        dead=dead,
    )


@pytest.mark.parametrize("dead", [0, 1])
def test_in_a_queue(survivors, dead):
    survivors(
        """
queue = crossrank.MessageQueue.create(world, chunks=2)
def step():
    if r == dead and queue.messages == 5: die()
    if queue.is_writer: queue.enqueue_bytes(b"message")
    else: assert queue.dequeue_bytes() == b"message"
lost(step, dead)
""",
        dead=dead,
    )


@pytest.mark.parametrize("dead", [0, 2])
def test_in_a_queue_with_a_handle(survivors, dead):
    """The endpoints are no group of their own, so the error has the number of the rank in the job."""
    survivors(
        """
if r == 0:
    queue = crossrank.MessageQueue.create_writer(world, readers=2)
    for reader in (1, 2): world.send_object(queue.handle(), dst=reader)
else:
    queue = crossrank.MessageQueue.attach(world.recv_object(src=0), reader=r - 1)
world.barrier()
def step():
    if r == dead and queue.messages == 5: die()
    if queue.is_writer: queue.enqueue_dict({"t": numpy.ones(3)})
    else: assert queue.dequeue_dict()["t"].shape == (3,)
lost(step, dead)
""",
        dead=dead,
    )


def test_with_a_state_in_shared_memory(survivors):
    """What the rank has published stays readable."""
    survivors(
        """
shared = crossrank.SharedMemoryWorkspace(world)
shared.write_configs_and_weights({"rank": r}, {"w": numpy.full(1 << 16, r)})
world.barrier()
if r == 1: die()
lost(world.barrier, 1)
config, weights = shared.read_configs_and_weights_from_rank(1)
assert config == {"rank": 1} and (weights["w"].numpy() == 1).all()
"""
    )


def test_while_it_writes_a_state_to_a_file(survivors, tmp_path):
    """The state before stays, whole, and the next process of that rank removes what is not."""
    survivors(
        """
files = crossrank.NFSWorkspace("states", rank=r)
if r == 1:
    files.write_configs_and_weights({"step": 0}, {"w": numpy.zeros(1 << 20)})
pids = world.all_gather_objects(os.getpid())
if r == 1:
    for step in range(1, 10 ** 6):
        files.write_configs_and_weights({"step": step}, {"w": numpy.full(1 << 20, step)})
if r == 0:
    time.sleep(1)
    os.kill(pids[1], signal.SIGKILL)
lost(world.barrier, 1)
config, weights = files.read_configs_and_weights_from_rank(1)
assert (weights["w"].numpy() == config["step"]).all()
"""
    )
    import crossrank

    crossrank.NFSWorkspace(tmp_path / "states", rank=1)
    assert not [file for file in (tmp_path / "states").iterdir() if "rank_1" in file.name or "rank1" in file.name]


COORDINATED = {
    "all_reduce": "tp.all_reduce(numpy.ones(1000))",
    "all_gatherv": "tp.all_gatherv(numpy.ones((r + 1, 2)))",
    "broadcast_tensor_dict": "tp.broadcast_tensor_dict({'t': numpy.ones(1000), 'n': 1} if r == 0 else None)",
    "messages": "(tp.send_tensor_dict({'t': numpy.ones(9)}), tp.recv_tensor_dict())",
    "dispatch": "tp.combine(*(lambda d: (d.hidden_states, d.route))(tp.dispatch("
    "numpy.ones((2, 4)), numpy.ones((2, 3)), is_sequence_parallel=True)))",
    "broadcast_object": "tp.broadcast_object(1)",
}


@pytest.mark.parametrize("call", COORDINATED.values(), ids=COORDINATED)
def test_in_a_coordinator(survivors, call):
    survivors(
        f"""
tp = crossrank.GroupCoordinator.create(world, [[0, 1, 2]], name="tp", broadcaster=True)
calls = 0
def step():
    global calls
    calls += 1
    if r == 1 and calls == 4: die()
    {call}
lost(step, 1)
"""
    )


def test_in_a_helper(survivors):
    survivors(
        """
def compute():
    if r == 1: die()
    return r
lost(lambda: crossrank.reduce_and_broadcast(world, compute, sum), 1)
"""
    )


def test_in_a_non_blocking_call(survivors):
    survivors(
        """
if r == 1:
    request = world.iall_reduce(numpy.ones(1 << 20))
    die()
lost(lambda: world.iall_reduce(numpy.ones(1 << 20)).wait(), 1)
"""
    )
