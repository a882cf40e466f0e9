"""Import, version, errors, signals, fork and exit."""

import ast
import copy
import errno
import os
import pickle
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import crossrank
import pytest


def test_import_loads_neither_torch_nor_numpy():
    code = "import sys, crossrank; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_errors_derive_from_the_builtin_kin():
    assert issubclass(crossrank.TimeoutError, TimeoutError)
    assert issubclass(crossrank.IoError, OSError)
    assert issubclass(crossrank.UsageError, ValueError)


def test_errors_of_python_code_have_a_code_too(tmp_path):
    with pytest.raises(crossrank.UsageError) as caught:
        crossrank.load(tmp_path, checksums=True)
    assert caught.value.code == crossrank.UsageError.code == "usage"
    assert pickle.loads(pickle.dumps(caught.value)).code == "usage"


def test_io_error_has_errno_and_report(tmp_path):
    with pytest.raises(crossrank.IoError) as caught:
        crossrank.load(tmp_path / "absent.safetensors")
    assert caught.value.code == "io"
    assert "absent" in caught.value.report()
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "absent.safetensors")
    assert "there is no such file" in str(caught.value)
    with pytest.raises(FileNotFoundError):
        crossrank.consolidate(tmp_path / "absent", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        crossrank.MergePlan(tmp_path / "absent")


def test_errors_survive_a_pickle(tmp_path):
    with pytest.raises(crossrank.IoError) as caught:
        crossrank.load(tmp_path / "absent.safetensors")
    error = caught.value
    error.add_note("while loading")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert isinstance(other, FileNotFoundError)
        assert (str(other), other.code, other.errno, other.filename) == (str(error), "io", errno.ENOENT, error.filename)
        assert other.report() == error.report()
        assert other.fields == error.fields
        assert other.__notes__ == ["while loading"]


def test_inspect_raises_the_error_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "absent", "-h"):  # a path is never an option
        with pytest.raises(crossrank.IoError) as caught:
            crossrank.inspect(path)
        assert isinstance(caught.value, FileNotFoundError)
        assert (caught.value.code, caught.value.errno, caught.value.filename) == ("io", errno.ENOENT, str(path))
    with pytest.raises(crossrank.UsageError, match="empty"):
        crossrank.inspect("")


def test_a_with_block_keeps_the_class_of_its_object():
    for kind in (
        crossrank.Collective, crossrank.MeshCollective, crossrank.CollectiveRange, crossrank.MessageQueue,
        crossrank.NFSWorkspace, crossrank.SharedMemoryWorkspace, crossrank.GroupCoordinator,
    ):  # fmt: skip
        assert typing.get_type_hints(kind.__enter__)["return"] is typing.Self


def test_an_exception_during_the_translation_of_an_error_is_raised(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(crossrank.errors, "from_native", interrupt)
    with pytest.raises(KeyboardInterrupt):
        crossrank.as_tensor(3)


def test_a_closed_group_has_a_text():
    world = crossrank.connect(rank=0, world_size=1)
    world.close()
    assert repr(world) == "crossrank.Collective(closed)"


def test_usage_error_names_the_bad_option():
    with crossrank.connect() as world, pytest.raises(crossrank.UsageError, match="minimum"):
        world.all_reduce(bytearray(4), op="minimum")


def test_ctrl_c_ends_a_wait_with_keyboard_interrupt(ranks):
    done = ranks(
        2,
        """
        import os, signal, threading, time
        if world.rank == 0:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                world.barrier()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        else:
            time.sleep(1)
            try:
                world.barrier()
            except crossrank.PeerLostError as error:
                print("lost", error.failed_ranks, flush=True)
        """,
    )
    assert "interrupted" in done.stdout
    assert "lost (0,)" in done.stdout


def test_ctrl_c_ends_connect_with_keyboard_interrupt():
    program = """
        import crossrank, os, signal, sys, threading, time
        if sys.argv[1] == "0":
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            crossrank.connect(rank=int(sys.argv[1]), world_size=3, job_id=sys.argv[2], connect_timeout=8)
        except KeyboardInterrupt:
            print("interrupted")
        except crossrank.PeerLostError as error:
            print("lost", error.failed_ranks)
    """
    job = f"ctrl-c-{os.getpid()}"
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), str(rank), job], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=30)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert outputs == ["interrupted", "lost (0,)"]


def _members(stub: ast.Module) -> set[str]:
    names = set()
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
            names.add(node.name)
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return {name for name in names if not name.rsplit(".", 1)[-1].startswith("_")}


def test_the_stub_names_everything_in_the_module():
    from crossrank import _core

    stub = Path(_core.__file__).with_name("_core.pyi")
    real = set()
    for name, value in vars(_core).items():
        if name.startswith("_"):
            continue
        real.add(name)
        if isinstance(value, type):
            real |= {f"{name}.{each}" for each in vars(value) if not each.startswith("_")}
    assert _members(ast.parse(stub.read_text())) == real
    assert stub.with_name("py.typed").exists()


def test_killed_rank_is_named(ranks):
    done = ranks(
        2,
        """
        import os, signal
        world.barrier()
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            world.barrier()
        except crossrank.PeerLostError as error:
            print("lost", error.failed_ranks, flush=True)
        """,
        check=False,
    )
    assert "lost (1,)" in done.stdout


def test_forked_child_gets_a_usage_error(ranks):
    done = ranks(
        2,
        """
        import os
        pid = os.fork()
        if pid == 0:
            try:
                world.barrier()
            except crossrank.UsageError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        world.barrier()
        """,
    )
    assert done.returncode == 0


@pytest.mark.parametrize("call", ["world.barrier()", "reader.dequeue_bytes(timeout=60)"])
def test_exit_is_clean_while_a_daemon_thread_is_in_a_call(call):
    program = f"""
        import crossrank, threading, time
        world = crossrank.connect(rank=0, world_size=1)
        queue = crossrank.MessageQueue.create_writer(world, readers=1)
        reader = crossrank.MessageQueue.attach(queue.handle(), reader=0)
        def call_forever():
            while True:
                {call}
        threading.Thread(target=call_forever, daemon=True).start()
        time.sleep(0.2)
        raise RuntimeError("the program failed")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    # Whether the thread returns from its call during the shutdown depends on the time.
    for _ in range(5):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, (done.returncode, done.stderr)


@pytest.mark.parametrize("order", ["del world", "del tensors", "pass", "import atexit; atexit.register(print)"])
def test_exit_is_clean_in_any_order(ranks, order):
    ranks(2, f"tensors = crossrank.get_tensors_parallel(bytes(1 << 20), group=world).take()\nworld.barrier()\n{order}\n")
