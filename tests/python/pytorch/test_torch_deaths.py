"""Ranks of torch that are killed or interrupted in a collective or in an export. An old checkpoint stays as it was."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import leftovers
import pytest

torch = pytest.importorskip("torch")
import crossrank.torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

CALLS = {
    "broadcast": lambda: dist.broadcast(torch.ones(9), src=1),
    "recv": lambda: dist.recv(torch.ones(9), src=1),
    "async": lambda: dist.all_reduce(torch.ones(1 << 20), async_op=True).wait(),
    "barrier": dist.barrier,
    "monitored_barrier": dist.monitored_barrier,
    "new_group": dist.new_group,
    "gather": lambda: crossrank.torch.gather_full_state_dict({"a": torch.ones(9)}),
    "send": lambda: [dist.send(torch.ones(9), dst=1) for _ in range(200)],
}


def death_in_a_call(rank: int, size: int) -> None:
    import os

    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(crossrank.PeerLostError, match="rank 1") as caught:
        CALLS[os.environ["CALL"]]()
    assert caught.value.failed_ranks == (1,)


@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_is_killed_in_a_collective_is_named(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALL", call)
    before = leftovers.names()
    with pytest.raises(AssertionError, match=r"^rank 1 of death_in_a_call exited with -9"):
        run_ranks(__file__, "death_in_a_call", 3)
    assert not leftovers.names_left_since(before)


def _weights(value: float) -> dict[str, torch.Tensor]:
    return {f"w{number}": torch.full((1 << 20,), value + number) for number in range(8)}


def _signal_in_an_export(rank: int, number: int, victim: int, expected: type[BaseException]) -> crossrank.Error | None:
    """Sends a signal to a rank once the export has written bytes, with an old checkpoint in place. Returns the error."""
    import os

    pids = [0] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    sent = []

    def progress(done: int, total: int, stage: str) -> None:
        if done > 0 and not sent:
            sent.append(number)
            os.kill(pids[victim], number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(expected) as caught:
        crossrank.torch.export_checkpoint(
            _weights(100.0), os.environ["OUT"], force=True, max_shard_bytes=8 << 20, progress=progress
        )
    assert sent or rank != 0
    return caught.value if isinstance(caught.value, crossrank.Error) else None


def killed_in_an_export(rank: int, size: int) -> None:
    import os

    error = _signal_in_an_export(rank, signal.SIGKILL, int(os.environ["VICTIM"]), crossrank.PeerLostError)
    assert error is not None and error.failed_ranks == (int(os.environ["VICTIM"]),)


def interrupted_in_an_export(rank: int, size: int) -> None:
    import os

    victim = int(os.environ["VICTIM"])
    _signal_in_an_export(rank, signal.SIGINT, victim, KeyboardInterrupt if rank == victim else crossrank.Error)
    # All ranks live, so the next export works.
    crossrank.torch.export_checkpoint(_weights(200.0), os.environ["OUT"] + "2")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a checkpoint, and checks after the test that its files are still the same and that no memory was left."""
    out = tmp_path / "model"
    crossrank.consolidate(_saved(tmp_path / "source"), out, max_shard_bytes=8 << 20)
    content = {file.name: file.read_bytes() for file in out.iterdir()}
    monkeypatch.setenv("OUT", str(out))
    before = leftovers.names()
    yield out
    assert {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()} == content
    assert not leftovers.names_left_since(before)


def _saved(folder: Path) -> Path:
    folder.mkdir()
    crossrank.save(folder / "model.safetensors", _weights(0.0))
    return folder


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_in_an_export(victim: int, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VICTIM", str(victim))
    with pytest.raises(AssertionError, match=rf"^rank {victim} of killed_in_an_export exited with -9"):
        run_ranks(__file__, "killed_in_an_export", 2)
    assert sorted(file.name for file in old.parent.iterdir()) == ["model", "source"]
    assert not [file for file in old.iterdir() if file.is_dir()]


def test_ctrl_c_in_an_export(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VICTIM", "0")
    run_ranks(__file__, "interrupted_in_an_export", 2)
    assert sorted(file.name for file in old.parent.iterdir()) == ["model", "model2", "source"]
    assert not [file for file in old.iterdir() if file.is_dir()]


# A disk that gives a file its final name only when the file "hang" is gone.
SLOW_RENAME = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int renameat(int from_dir, char const* from, int to_dir, char const* to) {
  if (strcmp(to, "model.safetensors") == 0) {
    close(creat("renaming", 0600));
    while (access("hang", F_OK) == 0) usleep(1000);
  }
  return syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}
"""


def interrupted_during_the_commit(rank: int, size: int) -> None:
    """Rank 1 is interrupted when all bytes are written and rank 0 renames the files."""
    import os
    import threading
    import time

    def interrupt() -> None:
        while not os.path.exists("renaming"):
            time.sleep(0.001)
        time.sleep(0.1)  # until rank 1 waits for rank 0
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        os.unlink("hang")

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 1:
        helper = threading.Thread(target=interrupt)
        helper.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            crossrank.torch.export_checkpoint(_weights(100.0), "model")
        helper.join()
        assert caught.value.group_usable  # type: ignore[attr-defined]
    else:
        crossrank.torch.export_checkpoint(_weights(100.0), "model")
    assert torch.equal(crossrank.load("model")["w3"].torch(), _weights(100.0)["w3"])
    # Both ranks still have the same group.
    crossrank.torch.export_checkpoint(_weights(200.0), "model2")
    dist.barrier()
    dist.destroy_process_group()


def test_ctrl_c_when_all_bytes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stub of a slow disk")
    (tmp_path / "rename.c").write_text(SLOW_RENAME)
    stub = tmp_path / "rename.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", stub, tmp_path / "rename.c"], check=True)
    (tmp_path / "hang").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LD_PRELOAD", str(stub))
    run_ranks(__file__, "interrupted_during_the_commit", 2, timeout="20")
