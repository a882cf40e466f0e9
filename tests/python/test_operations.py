"""What every operation promises, on several ranks, with numpy and torch tensors."""

import crossrank
import pytest

numpy = pytest.importorskip("numpy")

OPERATIONS = """
n, r = world.world_size, world.rank
x = make([r, 10 * r]); world.all_reduce(x); same(x, [sum(range(n)), 10 * sum(range(n))])
x = make([r]); world.all_reduce(x, op="max"); same(x, [n - 1])
x = make([r]); world.all_reduce(x, order="rank"); same(x, [sum(range(n))])
x = make([r]); world.ireduce(x, op="max", root=1, order="rank").wait(timeout=60); same(x, [n - 1 if r == 1 else r])
out = make([0]); world.reduce_scatterv(out, make(list(range(n))), rows=[1] * n, order="rank"); same(out, [n * r])
for call in (world.all_reduce, world.iall_reduce, world.reduce, world.ireduce):
    try: call(x, order="other")
    except crossrank.UsageError as error: assert "any, rank" in str(error), str(error)
    else: raise AssertionError(call)
for call in (world.reduce_scatter, world.ireduce_scatter):
    try: call(out, x, order="other")
    except crossrank.UsageError as error: assert "any, rank" in str(error), str(error)
    else: raise AssertionError(call)
x = make([r]); world.reduce(x, root=n - 1); same(x, [sum(range(n))] if r == n - 1 else [r])
x = make([r]); world.broadcast(x, root=1); same(x, [1])
out = make([0] * n); world.all_gather(out, make([r])); same(out, list(range(n)))
rows = list(range(1, n + 1))
out = make([0] * sum(rows)); world.all_gatherv(out, make([r] * rows[r]), rows=rows)
same(out, [i for i in range(n) for _ in range(rows[i])])
out = make([0] * n); world.gather(out if r == 0 else None, make([r])); same(out, list(range(n)) if r == 0 else [0] * n)
out = make([0]); world.scatter(out, make(list(range(n))) if r == 0 else None); same(out, [r])
out = make([0]); world.reduce_scatter(out, make(list(range(n)))); same(out, [n * r])
out = make([0] * n); world.all_to_all(out, make([10 * r + i for i in range(n)])); same(out, [10 * i + r for i in range(n)])
out = make([0]); world.sendrecv(out, make([r]), dst=(r + 1) % n, src=(r - 1) % n); same(out, [(r - 1) % n])
requests = [world.iall_reduce(make([1])), world.ibarrier()]
for request in requests: assert request.wait(timeout=60)
if r == 0: world.send(make([5]), dst=1, tag=3)
if r == 1: x = make([0]); world.recv(x, src=0, tag=3); same(x, [5])
if r != 0: world.send(make([r]), dst=0, tag=4)
if r == 0: x = make([0]); seen = []
for _ in range(n - 1 if r == 0 else 0): seen.append(world.recv_any(x, tag=4)); same(x, seen[-1:])
if r == 0: assert sorted(seen) == list(range(1, n)), seen
request = world.irecv_any(x) if r == 0 else None
if r == 0: assert not request.test() and request.source == -1
world.barrier()
if r == n - 1: world.send(make([8]), dst=0)
if r == 0: request.wait(); same(x, [8]); assert request.source == n - 1
assert world.broadcast_object({"a": [1, 2.5, None, "x", b"y"]} if r == 0 else None) == {"a": [1, 2.5, None, "x", b"y"]}
assert world.all_gather_objects(r) == list(range(n))
assert world.broadcast_object({1, 2} if r == 0 else None, pickle=True) == {1, 2}
assert world.scatter_objects(list(range(n)) if r == 0 else None) == r
assert crossrank.compute_and_broadcast(world, lambda: 42) == 42
try:
    crossrank.compute_and_broadcast(world, lambda: 1 // 0)
except ZeroDivisionError: assert r == 0
except crossrank.RemoteError as error:
    assert r != 0 and error.failed_ranks == (0,) and "rank 0 threw ZeroDivisionError: " in str(error), str(error)
assert crossrank.Mesh(world, {"dp": 1, "tp": n})["tp"].world_size == n
group = crossrank.GroupCoordinator.create(world, [list(range(n))], name="tp")
assert group.all_gather(make([r]), dim=0).shape == (n,)
assert list(group.broadcast_tensor_dict({"t": make([7]), "n": {"k": 1}} if r == 0 else None)) == ["t", "n"]
some, others = make([r]), make([2 * r, r])
world.iall_reduce([some, others]).wait(); same(some, [sum(range(n))]); same(others, [2 * sum(range(n)), sum(range(n))])
outs = [make([0] * n), make([0] * (2 * n))]; world.iall_gather(outs, [make([r]), make([r, -r])]).wait()
same(outs[0], list(range(n))); same(outs[1], [sign * i for i in range(n) for sign in (1, -1)])
outs = [make([0]), make([0])]
world.ireduce_scatter(outs, [make(list(range(n))), make([7] * n)], op="max").wait(); same(outs[0], [r]); same(outs[1], [7])
assert world.device_backend == "none"
job = crossrank.MeshCollective(world, tp_size=n)
assert (job.tp_rank, job.dp_world_size, job.rank) == (r, 1, r)
parts = [make([0]) for _ in range(n)]; job.all_gather_to_list(parts, make([r]))
for i in range(n): same(parts[i], [i])
assert job.mesh["tp"].world_size == n and job.tp_world.tp_world_size == n
tokens = group.dispatch(make([[r, r]] * (r + 1)), make([[r]] * (r + 1)), is_sequence_parallel=True)
assert tokens.hidden_states.shape == (sum(rows), 2) and tokens.route.sizes() == rows
assert group.combine(tokens.hidden_states, tokens.route).shape == (r + 1, 2)
assert group.combine(tokens.hidden_states, tokens.route, order="rank").shape == (r + 1, 2)
same(group.all_reduce(make([r]), order="rank").numpy(), [sum(range(n))])
same(group.reduce_scatter(make(list(range(n))), order="rank").numpy(), [n * r])
same(group.reduce_scatterv(make(list(range(n))), sizes=[1] * n, order="rank").numpy(), [n * r])
queue = crossrank.MessageQueue.create(world)
if queue.is_writer: queue.enqueue_dict({"t": make([7]), "k": "v"}); queue.close()
else: assert queue.dequeue_dict(timeout=60)["k"] == "v"; assert queue.dequeue_dict(timeout=60) is None
world.close()
"""

NUMPY = """
import numpy
make = lambda values: numpy.array(values, numpy.int64)
def same(got, expected): assert got.tolist() == expected, (got, expected)
"""
TORCH = """
import torch
make = lambda values: torch.tensor(values)
def same(got, expected): assert got.tolist() == expected, (got, expected)
"""


def test_operations_on_numpy_arrays(ranks):
    ranks(3, NUMPY + OPERATIONS)


def test_operations_on_torch_tensors(ranks):
    pytest.importorskip("torch")
    ranks(2, TORCH + OPERATIONS, timeout=300)


def test_a_progress_thread_advances_calls_while_python_computes(ranks):
    ranks(
        3,
        """
import time, numpy
driven = crossrank.connect(timeout=60, progress="thread")
values, until = numpy.ones(400_000, numpy.float32), time.monotonic() + 30
request = driven.iall_reduce(values)
while values.sum() != 3 * values.size: assert time.monotonic() < until
request.wait()
driven.close()
""",
    )


def test_ranks_that_are_threads_attach_with_their_group():
    import os
    import threading

    got = {}

    def run(rank):
        with crossrank.connect(
            rank=rank, world_size=2, job_id=f"attach-{os.getpid()}", rank_kind="thread", timeout=60
        ) as world:
            queue = crossrank.MessageQueue.create_writer(world, readers=1, warn_every=0) if rank == 0 else None
            handle = world.broadcast_object(queue.handle() if queue else None)
            if queue:
                queue.enqueue_bytes(b"hello")
                queue.close()
            else:
                reader = crossrank.MessageQueue.attach(handle, reader=0, group=world)
                got[rank] = reader.dequeue_bytes(timeout=60)
                reader.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {1: b"hello"}


@pytest.mark.parametrize("limit", [1e10, 1e300, float("inf")])
def test_a_long_timeout_waits(limit):
    import threading

    with crossrank.connect(rank=0, world_size=1, timeout=limit) as world:
        queue = crossrank.MessageQueue.create_writer(world, readers=1)
        reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
        sender = threading.Timer(0.2, lambda: queue.enqueue_bytes(b"late"))
        sender.start()
        assert reader.dequeue_bytes(timeout=limit) == b"late"
        sender.join()


def test_a_timeout_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="a timeout is a str"):
        crossrank.connect(rank=0, world_size=1, timeout="3")


@pytest.mark.parametrize("tag", [-1, 1 << 32])
def test_a_tag_out_of_range_is_refused(ranks, tag):
    ranks(
        2,
        f"""
        other = 1 - world.rank
        calls = [(world.send, dict(dst=other)), (world.isend, dict(dst=other)), (world.recv, dict(src=other)),
                 (world.irecv, dict(src=other)), (world.irecv_any, dict())]
        for call, partner in calls:
            try: call(bytearray(4), tag={tag}, **partner)
            except crossrank.UsageError as error: assert "4294967295" in str(error), error
            else: raise AssertionError(call)
        world.barrier()
        """,
    )


def test_a_negative_timeout_is_refused():
    with crossrank.connect() as world:
        queue = crossrank.MessageQueue.create_writer(world, readers=1)
        reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
        with pytest.raises(crossrank.UsageError, match="negative"):
            reader.dequeue_bytes(timeout=-0.001)


@pytest.mark.parametrize("option", ["connect_timeout", "user_limit", "linger"])
def test_a_negative_time_is_named(option):
    with pytest.raises(crossrank.UsageError, match=f"{option}.*negative"):
        crossrank.connect(rank=0, world_size=1, **{option: -1})


def test_repeated_waits_end_after_the_timeout_of_the_group(ranks):
    ranks(
        2,
        """
        late = crossrank.connect(job_id="late", timeout=1)
        if world.rank == 0:
            request = late.ibarrier()
            try:
                while not request.wait(timeout=0.1):
                    pass
            except crossrank.TimeoutError as error:
                assert list(error.failed_ranks) == [1] and "1000 ms" in str(error), error
            else:
                raise AssertionError("the barrier ended without rank 1")
        world.barrier()
        """,
    )


def test_messages_of_parts_are_read_in_place():
    with crossrank.connect(rank=0, world_size=1) as world:
        queue = crossrank.MessageQueue.create_writer(world, readers=1, chunk_bytes=64, chunks=4)
        reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
        kept: list[memoryview] = []
        for long in (b"x" * 10, b"x" * 10_000):
            queue.enqueue_parts([b"head", bytearray(long), memoryview(b"tail")])
            assert reader.read_bytes(lambda view: kept.append(view) or bytes(view)) == b"head" + long + b"tail"
        for view in kept:
            with pytest.raises(ValueError, match="released"):
                view[0]
        queue.enqueue_parts([])
        assert reader.read_bytes(len) == 0
        for number in range(3):
            queue.enqueue_bytes(b"%d" % number)
        with pytest.raises(ZeroDivisionError):
            reader.read_bytes(lambda _: 1 // 0)
        with pytest.raises(BufferError):  # a view of the view would outlive the message
            reader.read_bytes(lambda view: kept.append(view[:]))
        assert reader.read_bytes(bytes) == b"2"
        with pytest.raises(TypeError):
            queue.enqueue_parts([3])  # type: ignore[list-item]
        queue.close()
        assert reader.read_bytes(bytes) is None


def test_an_unknown_kind_of_progress_is_refused():
    with pytest.raises(crossrank.UsageError, match="caller, thread"):
        crossrank.connect(progress="both")


def test_gathers_and_workspaces(ranks):
    ranks(
        3,
        NUMPY
        + """
n, r = world.world_size, world.rank
with crossrank.get_tensors_parallel(make([r] * 100), group=world) as items:
    assert len(items) == (n if r == 0 else 0)
    for i, item in enumerate(items): assert item.numpy().tolist() == [i] * 100
    if r == 0:
        assert items[1].readonly and not items[1].numpy().flags.writeable
for item in crossrank.get_tensors_parallel({"a": make([r])}, [1, 0], group=world): assert list(item) == ["a"]
states = crossrank.get_configs_parallel({"rank": r}, {"w": make([r])}, group=world).take()
assert [state.config["rank"] for state in states] == (list(range(n)) if r == 0 else [])
for item in crossrank.get_tensors_parallel(make([r]), group=world, workspace_path="exchange"): assert item.shape == (1,)
shared = crossrank.SharedMemoryWorkspace(world)
mine = shared.empty((4,), "I64"); mine.numpy()[:] = r
shared.write_configs_and_weights({"rank": r}, {"w": mine})
world.barrier()
config, weights = shared.read_configs_and_weights_from_rank((r + 1) % n)
assert config == {"rank": (r + 1) % n} and weights["w"].numpy().tolist() == [(r + 1) % n] * 4
world.barrier()
try:
    with crossrank.get_tensors_parallel(make([r]), group=world) as items:
        if r == 0: raise RuntimeError("the merge failed")
except crossrank.PeerLostError as error: assert r != 0 and "the merge failed" in str(error)
except RuntimeError: assert r == 0
""",
    )


def test_other_threads_run_while_memory_is_reserved(ranks):
    ranks(
        2,
        """
import threading, time
ticks, over = [], threading.Event()
def tick():
    while not over.is_set(): ticks.append(0); time.sleep(0.001)
thread = threading.Thread(target=tick); thread.start()
shared = crossrank.SharedMemoryWorkspace(world)
before, start = len(ticks), time.monotonic()
zeros = shared.zeros((1 << 28,), "U8")
during, seconds = len(ticks) - before, time.monotonic() - start
over.set(); thread.join()
assert during >= 3 or seconds < 0.03, (during, seconds)
world.barrier()
""",
    )


def test_writing_to_a_received_torch_tensor_never_changes_the_senders(ranks):
    pytest.importorskip("torch")
    ranks(
        2,
        """
import torch
mine = torch.full((1 << 16,), float(world.rank))
for item in crossrank.get_tensors_parallel(mine, [0, 1], group=world):
    item.torch().fill_(-1)
shared = crossrank.SharedMemoryWorkspace(world)
shared.write_configs_and_weights(None, {"w": torch.full((1 << 16,), float(world.rank))})
world.barrier()
_, weights = shared.read_configs_and_weights_from_rank(1 - world.rank)
weights["w"].torch().fill_(-1)
world.barrier()
_, weights = shared.read_configs_and_weights_from_rank(world.rank)
assert weights["w"].torch()[0] == world.rank
if world.rank == 1: assert mine[0] == 1
world.close()
""",
        timeout=300,
    )


def test_ten_thousand_gathers_leak_nothing(ranks):
    ranks(
        2,
        NUMPY
        + """
import os
def descriptors(): return len(os.listdir("/proc/self/fd"))
def memory_in_use(): return int(open("/proc/self/statm").read().split()[1]) * 4096
value = make([0] * 1000)
def gather(times):
    for _ in range(times):
        with crossrank.get_tensors_parallel(value, group=world) as items:
            for item in items: item.numpy()
gather(1000)
before = descriptors(), memory_in_use()
gather(10000)
assert descriptors() == before[0] and memory_in_use() - before[1] < 8 << 20, (before, descriptors(), memory_in_use())
""",
    )


def test_ranks_that_disagree_about_pickle_are_told(ranks):
    ranks(
        2,
        """
r = world.rank
def refused(call):
    try: call()
    except crossrank.MismatchError as error:
        assert "`pickle`" in str(error) and "rank %d of 2" % r in str(error) and error.group_usable, str(error)
    else: raise AssertionError("accepted")
for pickled in (False, True):
    first, second = pickled, not pickled
    mine = first if r == 0 else second
    if r == 0: assert world.broadcast_object([1], pickle=mine) == [1]
    else: refused(lambda: world.broadcast_object(pickle=mine))
    refused(lambda: world.all_gather_objects(r, pickle=mine))
    if r == 0: refused(lambda: world.gather_objects(r, pickle=mine))
    else: assert world.gather_objects(r, pickle=mine) == []
    if r == 0: assert world.scatter_objects([1, 2], pickle=mine) == 1
    else: refused(lambda: world.scatter_objects(pickle=mine))
    if r == 0: world.send_object(b"x", dst=1, pickle=mine)
    else: refused(lambda: world.recv_object(src=0, pickle=mine))
assert world.all_gather_objects(b"x") == [b"x", b"x"]
""",
    )


def test_a_value_that_cannot_be_sent_is_an_error_on_all_ranks(ranks):
    ranks(
        2,
        """
import threading
bad, lock = {1: 2}, threading.Lock()
def refused(call):
    try: call()
    except crossrank.RemoteError: assert world.rank == 1
    except (crossrank.UsageError, TypeError): assert world.rank == 0
    else: raise AssertionError("accepted")
first = world.rank == 0
refused(lambda: world.broadcast_object(bad if first else None))
refused(lambda: world.broadcast_object(lock if first else None, pickle=True))
refused(lambda: world.all_gather_objects(bad if first else 7))
refused(lambda: world.gather_objects(bad if first else 7, root=1))
refused(lambda: world.scatter_objects([1, bad] if first else None))
refused(lambda: world.send_object(bad, dst=1) if first else world.recv_object(src=0))
group = crossrank.GroupCoordinator.create(world, [[0, 1]], name="tp")
refused(lambda: group.broadcast_tensor_dict({3: {1, 2}} if first else None))
for unsendable in ({3: 1}, {"lock": lock}, None):
    refused(lambda: group.send_tensor_dict(unsendable) if first else group.recv_tensor_dict())
if first: group.send_tensor_dict({"a": 1})
else: assert group.recv_tensor_dict() == {"a": 1}
world.barrier()
""",
    )


def test_an_exception_without_a_printable_text_reaches_all_ranks(ranks):
    ranks(
        2,
        r"""
class Mute(Exception):
    def __str__(self): raise RuntimeError("there is no text")
for error, text in ((ValueError("\udcff"), r"ValueError: \udcff"), (Mute(), "Mute: <no text>")):
    def fail(): raise error
    try: crossrank.compute_and_broadcast(world, fail)
    except crossrank.RemoteError as remote: assert world.rank == 1 and text in str(remote), remote
    except (ValueError, Mute) as own: assert world.rank == 0 and own is error
    else: raise AssertionError("no exception")
""",
    )


def test_an_exception_without_a_printable_text_ends_a_block_on_all_ranks(ranks):
    ranks(
        2,
        r"""
class Mute(Exception):
    def __str__(self): raise RuntimeError("there is no text")
for error, text in ((ValueError("\udcff"), r"ValueError: \udcff"), (Mute(), "Mute: <no text>")):
    for block in ("group", "range"):
        group = world.split([[0, 1]])
        try:
            with group if block == "group" else crossrank.get_tensors_parallel(bytes(3), group=group):
                if world.rank == 0: raise error
                if block == "group": group.barrier()
        except crossrank.PeerLostError as lost: assert world.rank == 1 and text in str(lost), lost
        except (ValueError, Mute) as own: assert world.rank == 0 and own is error
        else: raise AssertionError("no exception")
group = world.split([[0, 1]])
if world.rank == 0: group.abort("no file \udcff")
try: group.barrier()
except crossrank.PeerLostError as lost: assert r"no file \udcff" in str(lost), lost
else: raise AssertionError("no exception")
""",
    )


def test_an_exception_in_the_block_of_a_queue_reaches_the_other_endpoints(ranks):
    ranks(
        2,
        """
for failing in (0, 1):
    queue = crossrank.MessageQueue.create(world)
    try:
        with queue:
            if world.rank == failing: raise KeyError("no such batch")
            while True:
                if queue.is_writer: queue.enqueue_bytes(b"batch")
                else: queue.dequeue_bytes()
    except crossrank.PeerLostError: assert world.rank != failing
    except KeyError:
        assert world.rank == failing
        try: queue.wait_for(0)
        except crossrank.UsageError: pass
        else: raise AssertionError("the endpoint was not dropped")
        queue.close()
    world.barrier()
""",
    )


def test_an_item_that_cannot_be_sent_fails_the_gather_on_all_ranks(ranks):
    ranks(
        3,
        """
import numpy, pytest
class Odd: pass
good = numpy.zeros(2)
bad_configs = [1 << 70, "\\ud800", {1: 2}, eval("[" * 70 + "]" * 70), Odd()]
bad_weights = [{"w": Odd()}, {"w": numpy.zeros(2, numpy.complex256)}, {3: good}]
calls = [lambda bad=bad: crossrank.get_configs_parallel(bad, {}, group=world) for bad in bad_configs]
calls += [lambda bad=bad: crossrank.get_configs_parallel({}, bad, group=world) for bad in bad_weights]
calls += [lambda bad=bad: crossrank.get_tensors_parallel(bad, group=world) for bad in [*bad_weights, Odd()]]
for layer, call in enumerate(calls):
    with pytest.raises(Exception) as caught:
        if world.rank == 1: call()
        elif layer < len(bad_configs) + len(bad_weights): crossrank.get_configs_parallel({}, {}, group=world).close()
        else: crossrank.get_tensors_parallel({} if layer + 1 < len(calls) else good, group=world).close()
    assert isinstance(caught.value, crossrank.RemoteError) == (world.rank != 1), caught.value
    with crossrank.get_configs_parallel({"layer": layer}, {"w": good}, group=world) as states:
        assert [state.config["layer"] for state in states] == [layer] * (3 if world.rank == 0 else 0)
""",
    )


def test_bad_arguments_of_save_sharded_on_one_rank_are_an_error_on_all_ranks(ranks):
    ranks(
        2,
        """
import numpy
good = {"w": numpy.ones(3)}
for weights, options in (
    ({"w": 3}, {}), (3, {}), (good, {"threads": "many"}), (good, {"no_such_option": 1}), (good, {"config": {1: 2}}),
):
    try:
        if world.rank == 0: crossrank.save_sharded(weights, "model", world=world, **options)
        else: crossrank.save_sharded(good, "model", world=world)
    except crossrank.RemoteError: assert world.rank == 1
    except (crossrank.UsageError, TypeError): assert world.rank == 0
    else: raise AssertionError("accepted")
assert crossrank.save_sharded(good, "model", world=world, config={"kind": "small"}).bytes > 0
""",
    )


def test_a_coordinator_sends_dicts_in_the_background(ranks):
    ranks(
        4,
        """
import numpy
tp = crossrank.GroupCoordinator.create(world, [[0, 1], [2, 3]], name="tp")
pp = crossrank.GroupCoordinator.create(world, [[0, 2], [1, 3]], name="pp")
mine = numpy.full(4, tp.rank_in_group)
if pp.rank_in_group == 0:
    own = {"nested": {"residual": mine}, "same": numpy.arange(4)}
    choices = {"nested.residual": False}
    first = pp.isend_tensor_dict(own, all_gather_group=tp.cpu_group, all_gather_tensors=choices)
    second = pp.isend_tensor_dict({"step": 2}, dst=1)
    first.wait(); second.wait(); assert first.test()
    pp.send_tensor_dict(own, all_gather_group=tp.cpu_group, all_gather_tensors=choices)
else:
    first, second = pp.irecv_tensor_dict(src=0, all_gather_group=tp.cpu_group), pp.irecv_tensor_dict()
    assert second.wait() == {"step": 2} and second.test()
    for got in (first.wait(), first.wait(), pp.recv_tensor_dict(all_gather_group=tp.cpu_group)):
        assert got["nested"]["residual"].numpy().tolist() == mine.tolist(), got["nested"]["residual"].numpy()
        assert got["same"].numpy().tolist() == [0, 1, 2, 3]
world.barrier()
try:
    with pp: raise KeyError("no such stage") if world.rank == 0 else ConnectionError
except (KeyError, ConnectionError): pass
""",
    )


def test_an_exception_in_the_block_of_a_coordinator_reaches_the_other_ranks(ranks):
    ranks(
        2,
        """
for failing in (None, 0, 1):
    coordinator = crossrank.GroupCoordinator.create(world, [[0, 1]], device_communicator=failing == 1)
    try:
        with coordinator as group:
            group.barrier()
            if world.rank == failing: raise KeyError("no such stage")
            if failing == 0: group.barrier()
            if failing == 1: group.all_reduce(bytes(8))
    except crossrank.PeerLostError as lost: assert failing != world.rank and "no such stage" in str(lost), lost
    except KeyError: assert world.rank == failing
    else: assert failing is None
    try: coordinator.barrier()
    except crossrank.UsageError: pass
    else: raise AssertionError("the group was not left")
    world.barrier()
""",
    )


def test_a_block_of_a_workspace_withdraws_the_state(ranks):
    ranks(
        2,
        """
import os
for raises in (False, True):
    try:
        with crossrank.NFSWorkspace("shared") as files, crossrank.SharedMemoryWorkspace(world) as memory:
            for workspace in (files, memory): workspace.write_configs_and_weights({"rank": world.rank}, {"w": bytes(100)})
            world.barrier()
            read = crossrank.SharedMemoryWorkspace(world)
            with crossrank.NFSWorkspace.open("shared") as reader:
                kept = [each.read_configs_and_weights_from_rank(1 - world.rank) for each in (reader, read)]
            world.barrier()
            if raises: raise KeyError("no such state")
    except KeyError: assert raises
    world.barrier()
    assert [config["rank"] for config, _ in kept] == 2 * [1 - world.rank]
    assert all(weights["w"].tobytes() == bytes(100) for _, weights in kept)
    assert reader.read_configs_and_weights_from_rank(1 - world.rank) is None, os.listdir("shared")
    assert read.read_configs_and_weights_from_rank(1 - world.rank) is None
    world.barrier()
""",
    )


def test_ranks_that_only_read_may_pass_read_only_arrays(ranks):
    ranks(
        2,
        """
import numpy
whole = numpy.arange(6.0).reshape(2, 3)
if world.rank == 0:
    whole.flags.writeable = False
    turned = whole.T
else:
    whole, turned = numpy.zeros((2, 3)), numpy.zeros((3, 2))
world.broadcast(whole)
world.broadcast(turned)
group = crossrank.GroupCoordinator.create(world, [[0, 1]])
assert group.broadcast(whole) is whole
assert (turned == numpy.arange(6.0).reshape(2, 3).T).all() and (whole == turned.T).all()
own = numpy.ones(3)
if world.rank == 1: own.flags.writeable = False
world.reduce(own, root=0)
assert (own == (2 if world.rank == 0 else 1)).all()
""",
    )


def test_a_loop_of_tests_advances_calls_of_other_groups(ranks):
    ranks(
        2,
        """
import numpy
other = world.split([[0, 1]])
one, two = numpy.ones(1 << 20), numpy.ones(1 << 20)
if world.rank == 0:
    first = world.iall_reduce(one)
    second = other.iall_reduce(two)
    while not second.test(): pass
    first.wait()
else:
    world.iall_reduce(one).wait()
    other.iall_reduce(two).wait()
assert one[0] == two[0] == 2
""",
    )
