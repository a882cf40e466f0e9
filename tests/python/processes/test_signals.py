"""Ctrl-C and other threads in every call that may take long."""

import os
import shutil
import subprocess
import sys

import pytest

INTERRUPTED = """
import contextlib, os, pathlib, signal, threading, time
@contextlib.contextmanager
def interrupted(after):
    "Sends Ctrl-C after some seconds. The block must end by it within a second."
    def interrupt():
        global sent
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(after, interrupt).start()
    try:
        yield
    except KeyboardInterrupt:
        waited = time.monotonic() - sent
    else:
        raise AssertionError("no exception")
    assert waited < 1, waited
"""

# Rank 0 makes a call that needs rank 1, which makes none before rank 0 was interrupted.
WAIT = """
{before}
if world.rank == 0:
    with interrupted(0.3):
        {call}
    world.abort("interrupted")
    pathlib.Path("interrupted").touch()
else:
    until = time.monotonic() + 60
    while not os.path.exists("interrupted") and time.monotonic() < until: time.sleep(0.01)
    try: world.barrier()
    except crossrank.PeerLostError as error: assert error.failed_ranks == (0,), error
    else: raise AssertionError("rank 1 was not told")
"""

SHARDS = """
if world.rank == 0:
    os.mkdir("shards")
    for rank in range(2): crossrank.save(f"shards/rank{rank}.safetensors", {"model.norm.weight": bytes(100)})
world.barrier()
"""


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("", "with crossrank.get_tensors_parallel(bytes(100), group=world) as items: len(items)"),
        ("", "with crossrank.get_configs_parallel({}, group=world, workspace_path='x') as items: len(items)"),
        ("", "world.irecv(bytearray(8), src=1).wait()"),
        ("", "crossrank.zero_first(world, lambda: time.sleep(30))"),
        ("", "crossrank.reduce_and_broadcast(world, lambda: time.sleep(30), sum)"),
        ("queue = crossrank.MessageQueue.create(world, writer_rank=1)", "queue.dequeue_bytes()"),
        ("queue = crossrank.MessageQueue.create(world, chunks=1)", "for _ in range(9): queue.enqueue_bytes(b'x')"),
        ("group = crossrank.GroupCoordinator.create(world, [[0, 1]])", "group.recv_tensor_dict()"),
        ("group = crossrank.GroupCoordinator.create(world, [[0, 1]])", "group.irecv_tensor_dict().wait()"),
        (SHARDS, "crossrank.consolidate('shards', 'model', world=world)"),
        (SHARDS, "crossrank.verify('shards', world=world)"),
        ("", "crossrank.save_sharded({'w': bytes(100)}, 'model', world=world)"),
        ("class Slow:\n    def keys(self): time.sleep(60)", "crossrank.save_sharded(Slow(), 'model', world=world)"),
    ],
)
def test_ctrl_c_ends_a_wait_for_a_rank(ranks, before, call):
    ranks(2, INTERRUPTED + WAIT.format(before=before, call=call))


# A file system that does not answer while the file "hang" exists.
HUNG_CALLS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
static void wait_for_server(void) { while (access("hang", F_OK) == 0) usleep(10000); }
static int open_at(int dir, char const* path, int flags, mode_t mode) {
  wait_for_server();
  return syscall(SYS_openat, dir, path, flags, mode);
}
#define OPEN(name) int name(int dir, char const* path, int flags, ...) { \\
  va_list rest; va_start(rest, flags); mode_t const mode = va_arg(rest, mode_t); va_end(rest); \\
  return open_at(dir, path, flags, mode); }
OPEN(openat)
OPEN(openat64)
#define READ(name) ssize_t name(int fd, void* to, size_t bytes, off_t from) { \\
  wait_for_server(); return syscall(SYS_pread64, fd, to, bytes, from); }
READ(pread)
READ(pread64)
int unlinkat(int dir, char const* path, int flags) {
  wait_for_server();
  return syscall(SYS_unlinkat, dir, path, flags);
}
"""

HUNG = """
import crossrank
{before}
pathlib.Path("hang").touch()
with interrupted(0.2):
    {call}
os.unlink("hang")
{after}
"""


@pytest.fixture(scope="session")
def hung_calls(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stub of a hung file system")
    folder = tmp_path_factory.mktemp("hung")
    (folder / "calls.c").write_text(HUNG_CALLS)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "calls.so", folder / "calls.c"], check=True)
    return folder / "calls.so"


WORKSPACE = "workspace = crossrank.NFSWorkspace('exchange', rank=0); workspace.write_configs_and_weights({}, {'w': bytes(9)})"
REFUSED = """
try: workspace.read_configs_and_weights_from_rank(0)
except crossrank.UsageError: pass
else: raise AssertionError("an interrupted thread still has the workspace")
"""
FILES = "crossrank.save('model.safetensors', {'w': bytes(100)})"
STATE = """import glob
crossrank.NFSWorkspace('states', rank=0).write_configs_and_weights({}, {'w': bytes(100)})
weights = crossrank.load(glob.glob('states/*.safetensors')[0], checksums=True)"""


@pytest.mark.parametrize(
    ("before", "call", "after"),
    [
        ("", "crossrank.NFSWorkspace('exchange', rank=0)", ""),
        (WORKSPACE, "workspace.write_configs_and_weights({}, {'w': bytes(9)})", REFUSED),
        (WORKSPACE, "workspace.read_configs_and_weights_from_rank(0)", "workspace.read_configs_and_weights_from_rank(0)"),
        (WORKSPACE, "workspace.clean()", REFUSED),
        (FILES, "crossrank.load('model.safetensors')", "crossrank.load('model.safetensors')['w']"),
        (STATE, "weights['w']", "assert weights['w'].tobytes() == bytes(100)"),
        (FILES, "crossrank.load('.', source_tp=1)", ""),
        (FILES + "; plan = crossrank.MergePlan('.')", "plan.read('w')", "assert plan.read('w').tobytes() == bytes(100)"),
        ("", FILES, ""),
        (
            "world = crossrank.connect()",
            "crossrank.get_tensors_parallel(b'w', group=world, workspace_path='exchange').take()",
            "",
        ),
    ],
)
def test_ctrl_c_ends_a_call_on_a_hung_file_system(hung_calls, tmp_path, before, call, after):
    code = INTERRUPTED + HUNG.format(before=before, call=call, after=after)
    environment = {**os.environ, "LD_PRELOAD": str(hung_calls)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("end", ["del items", "items.__exit__(None, ValueError('no'), None)"])
def test_a_gather_that_ends_on_a_hung_file_system_lets_other_threads_run(hung_calls, ranks, monkeypatch, end):
    monkeypatch.setenv("LD_PRELOAD", str(hung_calls))
    ranks(
        2,
        f"""
import os, pathlib, threading
items = crossrank.get_tensors_parallel(b"w", group=world, workspace_path=os.path.abspath("exchange"))
if world.rank == 0: world.send_object("opened", dst=1)
if world.rank == 1:  # its tensor is in a file, which it removes
    world.recv_object(src=0)
    os.mkdir("rank1")
    os.chdir("rank1")
    pathlib.Path("hang").touch()
    threading.Timer(0.2, lambda: os.unlink("hang")).start()
    {end}
    assert not os.path.exists("hang"), "the file system has not been used"
""",
        timeout=30,  # the wait for the file system ends with the group's timeout, after 60 s
    )


def test_a_queue_can_be_used_after_ctrl_c(ranks):
    ranks(
        1,
        INTERRUPTED
        + """
queue = crossrank.MessageQueue.create_writer(world, readers=1)
reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
for wait in (lambda: reader.wait_for(60), lambda: reader.dequeue_bytes(timeout=60)):
    with interrupted(0.3): wait()
    queue.enqueue_bytes(b"next")
    assert reader.wait_for(60) and reader.dequeue_bytes() == b"next"
""",
    )
