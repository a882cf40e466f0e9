"""Tensors that other ranks or the library put on a GPU. The driver is emulated."""

import os

import pytest

pytest.importorskip("numpy")
driver = os.environ.get("CROSSRANK_TEST_CUDA", "")
pytestmark = pytest.mark.skipif(not os.path.exists(driver), reason="CROSSRANK_TEST_CUDA names no emulated driver")


@pytest.fixture(autouse=True)
def emulated_gpus(monkeypatch):
    monkeypatch.setenv("CROSSRANK_CUDA_LIBRARY", driver)
    monkeypatch.setenv("EMULATED_GPU_COUNT", "2")


def test_results_on_a_gpu_arrive_on_the_cpu(ranks):
    ranks(
        2,
        """
import numpy
group = crossrank.GroupCoordinator.create(world, [[0, 1]], device_communicator=True)
sent = numpy.arange(4.0)
if world.rank == 0: group.send(sent)
else:
    got = group.recv((4,), "F64")  # the coordinator receives it on this rank's GPU
    assert got.__dlpack_device__()[0] == 1
    assert (got.numpy() == sent).all() and got.tobytes() == sent.tobytes()
world.close()
""",
    )
