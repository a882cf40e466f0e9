"""Runs vLLM's own tests of its message queue, stateless groups and group coordinator on `crossrank.compat.vllm`.

Usage: vllm_suite.py SOURCE [pytest arguments]    SOURCE is an unpacked source distribution or a checkout of vLLM.

Needs torch, pytest and the package multiprocess. vLLM itself is not needed: a package of that name, made for the run, gives the
tests our classes. ADAPTATIONS lists every change of the tests' text with its reason, STAND_INS what the tests import instead of
code of vLLM and Ray, NOT_RUN every test that is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Tests that run, by file. The other tests of these files are left out for the reason in NOT_RUN.
RUN = {
    "test_shm_broadcast.py": [
        "test_shm_broadcast",
        "test_message_queue_shutdown_busy",
        "test_message_queue_shutdown_idle",
        "test_message_queue_idle_wake",
        "test_message_queue_busy_to_idle",
        "test_tensor_broadcast",
        "test_broadcast_retains_values_after_ring_reuse",
        "test_reader_in_reference_cycle_is_collected_without_blocking",
    ],
    "test_utils.py": ["test_stateless_process_group"],
    "test_comm_ops.py": [
        "test_multi_process_tensor_parallel",
        "test_multi_process_pipeline_parallel",
        "test_multi_process_tensor_parallel_pipeline_parallel",
    ],
    "test_cpu_gatherv.py": ["test_cpu_all_gatherv"],
}

NOT_RUN = {
    "test_shm_broadcast.py": "the internals of vLLM's ring, its pickler, sockets, warnings and tensor arena",
    "test_utils.py": "CUDA devices",
    "test_comm_ops.py": "vLLM's code for CUDA, FlashInfer and asynchronous sends, with mocks in place of ranks",
}

# Pattern, replacement, and why. The text of a version may lack a pattern.
ADAPTATIONS = [
    (r"message_queue\._spin_condition\.\w+ = \S+", "pass", "a reader of ours chooses by itself when it sleeps"),
    (r'message_queue\._spin_condition, "wait", wraps=message_queue\._spin_condition\.wait',
     'message_queue, "dequeue", wraps=message_queue.dequeue', "the tests count turns of vLLM's loop; there is none to count"),
    (r"assert wrapped_wait\.call_count.*", "pass", "as above"),
    (r"mock\.patch\.object\(MessageQueue, \"recv\", wraps=MessageQueue\.recv\)", "mock.MagicMock()",
     "long messages use no socket, whose calls the tests count"),
    (r"recv\.assert_\w+\(\)|assert recv\.call_count.*", "pass", "as above"),
    (r"assert wrapped_reduce\.call_count.*", "pass", "our queue has no such function"),
    (r"received_oob = .*|loads\.reset_mock\(\)|assert received_oob.*", "pass", "our pickles have no separate buffers"),
    (r"timeout=60, mp_context", "timeout=600, mp_context", "two slow cores need longer for 10,000 messages"),
    (r"time\.time\(\) - start_time < 60", "time.time() - start_time < 600", "as above"),
    (r"from \.\.utils import", "from vllm_helpers import", "vLLM's helpers start the ranks with Ray"),
    (r"cuda:\{rank\}", "cpu", "the ranks have no GPUs"),
    (r'device="cuda"', 'device="cpu"', "as above"),
    (r"torch\.(accelerator\.set_device_index|cuda\.set_device)\(device\)", "pass", "as above"),
    (r'@pytest\.mark\.skip\(reason="This test is flaky and prone to hang."\)\n', "", "with our groups it does not hang"),
    (r"cpu_worker, gpu_worker, broadcast_worker", "cpu_worker, broadcast_worker", "the ranks have no GPUs"),
]  # fmt: skip

# Each entry names a stand-in for code of vLLM, and why it is needed. The stand-ins are in PACKAGE, HELPERS and CONFTEST.
STAND_INS = [
    ("CpuCommunicator is a GroupCoordinator of all ranks", "crossrank has no communicator below its coordinator"),
    ("the functions of vllm.distributed call the coordinators that the helpers have made",
     "vLLM's look up the groups of its own parallel state"),
    ("ray.remote changes nothing", "the helpers start the ranks, and Ray is not installed"),
    ("multi_gpu_test changes nothing", "vLLM's skips a test where there are too few GPUs, and these ranks need none"),
    ("numpy.random.seed(0) before the tests",
     "the forked ranks of some tests must draw the same numbers"),
]  # fmt: skip

# The package `vllm` of the run: what the tests import and need. Any other name of vLLM can be imported but not used.
PACKAGE = '''
import importlib.abc
import importlib.machinery
import sys
import types


class Absent:
    """Stands for a part of vLLM that the tests import and do not use."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()

    def __call__(self, *arguments, **named):
        return Absent()

    def __rmul__(self, other):
        return self


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("vllm", "ray"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(Absent(), name)
        return module

    def exec_module(self, module):
        module.__dict__.update(PARTS.get(module.__name__, dict)())


def queue_parts():
    from crossrank.compat.vllm import MessageQueue

    return {"MessageQueue": MessageQueue}


def group_parts():
    from crossrank.compat.vllm import StatelessProcessGroup

    return {"StatelessProcessGroup": StatelessProcessGroup}


def coordinator_parts():
    from crossrank.compat.vllm import GroupCoordinator

    return {"GroupCoordinator": GroupCoordinator}


def communicator_parts():
    from crossrank.compat.vllm import GroupCoordinator

    def communicator(cpu_group, device, device_group):
        import torch.distributed as dist

        return GroupCoordinator([list(range(dist.get_world_size()))], dist.get_rank())

    return {"CpuCommunicator": communicator}


def distributed_parts():
    import vllm_helpers as helpers

    return {
        "broadcast_tensor_dict": lambda values=None, src=0: helpers.groups["tp"].broadcast_tensor_dict(values, src),
        "get_pp_group": lambda: helpers.groups["pp"],
        "tensor_model_parallel_all_gather": lambda tensor, dim=-1: helpers.groups["tp"].all_gather(tensor, dim),
        "tensor_model_parallel_all_reduce": lambda tensor: helpers.groups["tp"].all_reduce(tensor),
        "tensor_model_parallel_reduce_scatter": lambda tensor, dim=-1: helpers.groups["tp"].reduce_scatter(tensor, dim),
    }


def port_parts():
    import vllm_helpers as helpers

    return {"get_open_port": helpers.get_open_port}


def environment_parts():
    import os

    return {"update_environment_variables": os.environ.update}


PARTS = {
    "vllm.distributed": distributed_parts,
    "vllm.distributed.device_communicators.cpu_communicator": communicator_parts,
    "vllm.distributed.device_communicators.shm_broadcast": queue_parts,
    "vllm.distributed.parallel_state": coordinator_parts,
    "vllm.distributed.utils": group_parts,
    "vllm.utils.network_utils": port_parts,
    "vllm.utils.system_utils": environment_parts,
    "ray": lambda: {"remote": lambda *target, **options: target[0] if target else lambda function: function},
}
sys.meta_path.insert(0, Finder())
'''

HELPERS = """
import multiprocess as mp
import socket

import torch.distributed as dist

groups = {}


def get_open_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def multi_gpu_test(num_gpus):
    return lambda function: function


def init_test_distributed_environment(tp_size, pp_size, rank, port):
    from crossrank.compat.vllm import GroupCoordinator

    size = tp_size * pp_size
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    tp = [[first + i for i in range(tp_size)] for first in range(0, size, tp_size)]
    pp = [list(range(first, size, tp_size)) for first in range(tp_size)]
    groups["tp"] = GroupCoordinator(tp, rank, "gloo", True, group_name="tp")
    groups["pp"] = GroupCoordinator(pp, rank, "gloo", True, group_name="pp")


def multi_process_parallel(monkeypatch, tp_size, pp_size, test_target):
    port = str(get_open_port())
    given = [(monkeypatch, tp_size, pp_size, rank, port) for rank in range(tp_size * pp_size)]
    ranks = [mp.Process(target=test_target, args=arguments) for arguments in given]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert [one.exitcode for one in ranks] == [0] * len(ranks)
"""

CONFTEST = """
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
import vllm_stand_in  # noqa: F401
import numpy
import pytest

numpy.random.seed(0)  # the forked ranks of some tests must draw the same numbers

@pytest.fixture
def caplog_vllm(caplog):
    return caplog
"""


def adapted(text: str) -> str:
    """Returns the text of a test file with all adaptations."""
    for pattern, replacement, _ in ADAPTATIONS:
        text = re.sub(pattern, replacement, text)
    return "import vllm_stand_in\n" + text


def main() -> int:
    source, *arguments = sys.argv[1:]
    for change, reason in STAND_INS:
        print(f"stand-in: {change}: {reason}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vllm_stand_in.py").write_text(PACKAGE)
        (folder / "vllm_helpers.py").write_text(HELPERS)
        (folder / "conftest.py").write_text(CONFTEST)
        selected = []
        for file, tests in RUN.items():
            original = Path(source) / "tests" / "distributed" / file
            if not original.exists():
                print(f"not run: {file}, which this version of vLLM does not have")
                continue
            text = original.read_text()
            (folder / file).write_text(adapted(text))
            there = re.findall(r"^def (test_\w+)", text, re.MULTILINE)
            selected += [f"{file}::{test}" for test in tests if test in there]
            left_out = [test for test in there if test not in tests]
            if left_out:
                print(f"not run: {len(left_out)} tests of {file}: {NOT_RUN[file]}")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([name, os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, *selected]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
