"""Ranks of the backend "crossrank" that are late, leave, die, fork or are interrupted."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

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


def test_a_rank_outside_the_group_is_a_usage_error(tmp_path) -> None:
    ended = subprocess.run([sys.executable, "-c", _JOIN, "2", "2", tmp_path / "store"], capture_output=True, text=True)
    assert "UsageError there is no rank 2 in a group of 2 ranks" in ended.stdout, ended.stderr


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


def _interrupt(rank: int, call: Callable[[], object]) -> crossrank.PeerLostError | None:
    """Interrupts rank 0 in `call`. Returns the error by which the other rank learns of it."""

    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            call()
        # This rank stays alive, so the abort must tell the other.
        store.wait(["told"], timedelta(seconds=30))
        return None
    with pytest.raises(crossrank.PeerLostError, match="signal") as caught:
        dist.recv(torch.empty(1), 0)
    store.set("told", "")
    return caught.value


def interrupted(rank: int, size: int) -> None:
    error = _interrupt(rank, lambda: dist.recv(torch.empty(1), 1))
    assert error is None or error.failed_ranks == (0,)
    dist.destroy_process_group()


def interrupted_barrier(rank: int, size: int) -> None:
    _interrupt(rank, dist.barrier)
    dist.destroy_process_group()


def forked(rank: int, size: int) -> None:

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


def late_at_monitored_barrier(rank: int, size: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    if rank != 1:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(seconds=1 if rank == 0 else 30))
    dist.barrier()
    dist.destroy_process_group()


def rounds_of_monitored_barriers(rank: int, size: int) -> None:
    """A rank that comes late fails in its own round, and the next rounds pass."""
    for _ in range(3):
        for _ in range(5):
            dist.monitored_barrier()
        if rank == 0:
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(seconds=0.3))
        dist.barrier()
        if rank == 1:
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.monitored_barrier()
    dist.barrier()
    dist.destroy_process_group()


def ranks_on_two_hosts(rank: int, size: int) -> None:
    """All ranks get the error, and a group of the ranks of one host works."""
    from crossrank.compat import groups

    assert groups._host() == groups._host() != ""
    groups._host = lambda: "here" if rank == 0 else "there"
    for call in (lambda: dist.new_group(backend="crossrank"), lambda: crossrank.torch.gather_full_state_dict({})):
        with pytest.raises(crossrank.UnavailableError, match=rf"ranks \[{1 - rank}\] are on other hosts than rank {rank}"):
            call()
    assert groups.subgroup([rank]).world_size == 1
    dist.barrier()
    dist.destroy_process_group()


def rank_that_does_not_join(rank: int, size: int) -> None:

    from crossrank.compat import groups

    if rank == 0:
        with pytest.raises(crossrank.TimeoutError, match=r"ranks \[1\] did not come within 0.3 s") as late:
            groups.next_job(store := dist.distributed_c10d._get_default_store(), "late", rank=0, ranks=[0, 1],
                            timeout=timedelta(seconds=0.3))  # fmt: skip
        assert late.value.failed_ranks == (1,)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            groups.next_job(store, "late", rank=0, ranks=[0, 1], timeout=timedelta(seconds=60))
    dist.barrier()
    dist.destroy_process_group()


def interrupted_monitored_barrier(rank: int, size: int) -> None:

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 0:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            dist.monitored_barrier(timeout=timedelta(seconds=60))
        assert time.monotonic() - start < 10
    dist.barrier()
    dist.destroy_process_group()


def one_limit_for_all_ranks(rank: int, size: int) -> None:
    """A rank that comes late leaves less time for the others."""

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


def second_shutdown(rank: int, size: int) -> None:
    group = dist.group.WORLD
    dist.barrier()
    group.shutdown()
    group.shutdown()
    group.abort()
    dist.destroy_process_group()


def other_dtype(rank: int, size: int) -> None:
    """Four bytes of one dtype are no value of another."""
    with pytest.raises(crossrank.MismatchError, match="F32"):
        dist.broadcast(torch.ones(4, dtype=torch.float32 if rank == 0 else torch.int32), src=0)
    dist.destroy_process_group()


def death(rank: int, size: int) -> None:

    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception, match="rank 1"):
        dist.all_reduce(torch.ones(1000))


def late_rank(rank: int, size: int) -> None:
    """Every wait ends after the timeout of its group. A receive that nobody waits for does not."""
    store = dist.distributed_c10d._get_default_store()

    def barrier(group: dist.ProcessGroup) -> None:
        dist.barrier(group)

    def all_reduce(group: dist.ProcessGroup) -> None:
        unawaited = dist.irecv(torch.ones(3), src=0, group=group)
        reduced = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        assert reduced is not None and unawaited is not None
        reduced.wait()

    def receive(group: dist.ProcessGroup) -> None:
        received = dist.irecv(torch.ones(3), src=0, group=group)
        assert received is not None
        received.wait()

    for call in (barrier, all_reduce, receive):
        group = dist.new_group(timeout=timedelta(seconds=3))
        assert isinstance(group, dist.ProcessGroup)
        if rank == 0:
            store.wait([call.__name__], timedelta(seconds=60))
        else:
            with pytest.raises(crossrank.TimeoutError, match="rank 0"):
                call(group)
            store.set(call.__name__, "over")
    dist.barrier()
    dist.destroy_process_group()


def own_timeouts(rank: int, size: int) -> None:
    """A timeout of the options or of `set_timeout` ends an operation before that of the group, or after it."""
    store = dist.distributed_c10d._get_default_store()
    short = timedelta(seconds=1)

    def by_options(group: Any) -> None:
        group.allreduce(torch.ones(3), timeout=short).wait()

    def by_positional_options(group: Any) -> None:
        group.barrier(short).wait()

    def of_a_sparse_tensor(group: Any) -> None:
        group.allreduce([torch.ones(3).to_sparse()], timeout=short).wait()

    def by_set_timeout(group: Any) -> None:
        dist.set_timeout(short, group)
        dist.all_reduce(torch.ones(3), group=group)

    def of_a_receive(group: Any) -> None:
        dist.set_timeout(short, group)
        dist.recv(torch.ones(3), src=0, group=group)

    for call in (by_options, by_positional_options, of_a_sparse_tensor, by_set_timeout, of_a_receive):
        group = dist.new_group()
        if rank == 0:
            store.wait([call.__name__], timedelta(seconds=60))
        else:
            with pytest.raises(crossrank.TimeoutError, match="rank 0"):
                call(group)
            store.set(call.__name__, "over")

    late: Any = dist.new_group(timeout=short)
    if rank == 0:
        store.wait(["late"], timedelta(seconds=60))
    work = late.allreduce(torch.ones(3), timeout=timedelta(seconds=60))
    if rank != 0:
        with pytest.raises(crossrank.TimeoutError, match="within 3"):
            work.wait(timedelta(seconds=3))
        store.set("late", "")
    assert work.wait()
    dist.barrier()
    dist.destroy_process_group()


def test_an_operation_can_have_a_timeout_of_its_own() -> None:
    run_ranks(__file__, "own_timeouts", 2, timeout="")


def test_a_late_rank_is_named_after_the_timeout_of_the_group() -> None:
    run_ranks(__file__, "late_rank", 2, timeout="")


@pytest.mark.parametrize(
    "scenario",
    [
        "interrupted",
        "interrupted_barrier",
        "forked",
        "late_at_monitored_barrier",
        "rounds_of_monitored_barriers",
        "interrupted_monitored_barrier",
        "rank_that_does_not_join",
        "groups_on_one_store",
        "second_shutdown",
        "other_dtype",
    ],
)
def test_scenario(scenario: str) -> None:
    run_ranks(__file__, scenario, 2)


def test_ranks_on_two_hosts() -> None:
    run_ranks(__file__, "ranks_on_two_hosts", 2, backend="gloo")


@pytest.mark.parametrize("scenario", ["leaving", "one_limit_for_all_ranks"])
def test_scenario_of_three_ranks(scenario: str) -> None:
    run_ranks(__file__, scenario, 3)


def ends_with_work_in_atexit(rank: int, size: int) -> None:
    """A function of atexit that is registered before the backend is imported runs after the group's thread has ended."""
    from crossrank.torch import pending

    def clean_up() -> None:
        for act in (lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(), received.wait, dist.barrier):
            try:
                print(act() or "completed")
            except (RuntimeError, crossrank.CancelledError) as error:
                print(type(error).__name__)

    atexit.unregister(pending._leave_all)
    atexit.register(clean_up)
    atexit.register(pending._leave_all)
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    received = dist.irecv(torch.ones(2), 1 - rank)
    assert received is not None


def test_functions_of_atexit_never_wait_for_the_thread_that_has_ended() -> None:
    outputs = run_ranks(__file__, "ends_with_work_in_atexit", 2, limit=60)
    assert [output.split() for output in outputs] == [["RuntimeError", "CancelledError", "completed"]] * 2


def ends_while_a_callback_runs(rank: int, size: int) -> None:
    """The group has been destroyed, and nothing refers to it, when the callback is still running."""

    def slow(future: torch.futures.Future) -> None:
        time.sleep(0.5)
        print("completed", flush=True)

    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    future.then(slow)
    future.wait()
    dist.destroy_process_group()


def test_a_program_may_end_while_a_callback_runs() -> None:
    assert [output.split() for output in run_ranks(__file__, "ends_while_a_callback_runs", 2)] == [["completed"]] * 2


def gone_while_it_waits(rank: int, size: int, leave: Callable[[], object]) -> None:
    """Rank 2 leaves while it waits for rank 0, which is late. The others notice that at once."""
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == 2:
        threading.Timer(0.5, leave).start()
    if rank == 0:
        store.wait(["rank 2 has left"])
    begin = time.monotonic()
    with pytest.raises((crossrank.PeerLostError, crossrank.TimeoutError, KeyboardInterrupt)) as failure:
        dist.new_group([0, 1, 2], timeout=timedelta(seconds=20 if leave is kill_soon else 3))
    if rank == 2:
        store.set("rank 2 has left", "")
    elif leave is kill_soon:
        assert isinstance(failure.value, crossrank.PeerLostError) and failure.value.failed_ranks == (2,)
        assert time.monotonic() - begin < 10


def kill_soon() -> None:
    dist.distributed_c10d._get_default_store().set("rank 2 has left", "")
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while_it_waits(rank: int, size: int) -> None:
    gone_while_it_waits(rank, size, kill_soon)


def interrupted_while_it_waits(rank: int, size: int) -> None:
    """The late rank finds no arrival of the rank that was interrupted, and names it after the timeout."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gone_while_it_waits(rank, size, lambda: os.kill(os.getpid(), signal.SIGINT))


def test_a_rank_that_is_killed_while_it_waits_for_others_is_noticed() -> None:
    with pytest.raises(AssertionError, match="rank 2 of killed_while_it_waits exited with -9"):
        run_ranks(__file__, "killed_while_it_waits", 3)


def test_a_rank_that_is_interrupted_while_it_waits_takes_its_arrival_back() -> None:
    run_ranks(__file__, "interrupted_while_it_waits", 3)


def ends_while_operations_run(rank: int, size: int) -> None:
    dist.barrier()
    for _ in range(500):
        dist.all_reduce(torch.ones(100), async_op=True)


def test_a_program_may_end_while_operations_run() -> None:
    for _ in range(4):  # without care for the group's thread, every third run ends by SIGABRT
        run_ranks(__file__, "ends_while_operations_run", 2)


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
    assert late.communicate(timeout=120)[0].startswith("MismatchError the process group could not be made")
