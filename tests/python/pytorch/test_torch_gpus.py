"""Torch's tensors on GPUs, and the order of streams.

The emulated driver has no kernels of torch, so a stand-in for torch gives CUDA tensors in its memory. Streams of torch do not
wait for the default stream, and their operations start late: a call in the wrong order reads stale bytes.
"""

import os
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "emulated_torch"

START = """
import torch
assert torch.__file__.startswith(STAND_IN)
n, r = world.world_size, world.rank
gpu = f"cuda:{r}"
late = [torch.full(1, 0, device=gpu) for _ in range(2)]
def delay():
    # Operations that keep torch's current stream busy.
    for each in late * 20: each.fill_(0)
side, other = torch.cuda.Stream(r), torch.cuda.Stream(r)
"""

PROGRAMS = {
    "calls follow torch's stream": """
x, out = torch.full(1000, 1, device=gpu), torch.full(2000, 1, device=gpu)
torch.cuda.current_stream(r).synchronize()
with torch.cuda.stream(side):
    for call, value in ((world.all_reduce, 4), (lambda t: world.iall_reduce(t).wait(), 8), (lambda t: world.broadcast(t), 2)):
        delay()
        x.fill_(value / 2 + r)
        call(x)
        assert x.tolist() == ([value + 1] if value > 2 else [1.0]) * 1000, (value, x.tolist()[:3])
    delay()
    x.fill_(5 + r)
    world.all_gather(out, x)
    assert out.tolist() == [5.0] * 1000 + [6.0] * 1000
    delay()
    x.fill_(r)
    if r == 0: world.send(x, dst=1)
    else:
        world.recv(x, src=0)
        assert x.tolist() == [0.0] * 1000
""",
    "results follow torch's stream": """
tp = crossrank.GroupCoordinator.create(world, [[0, 1]], device_communicator=True, broadcaster=True)
with torch.cuda.stream(side):
    # The first call of the process with a GPU receives.
    if r == 1:
        got = tp.recv((1000,), "F32", src=0)
        assert got.torch().tolist() == [3.0] * 1000
    else:
        delay()
        tp.send(torch.full(1000, 3, device=gpu), dst=1)
    for value in range(5):
        delay()
        x = torch.full(1000, value, device=gpu)
        total = tp.all_reduce(x).torch()
        assert total.is_cuda and str(total.device) == gpu and total.tolist() == [2.0 * value] * 1000
        delay()
        x = torch.full(1000, value + 1, device=gpu)
        got = tp.broadcast_tensor_dict({"x": x} if r == 0 else None)["x"]
        assert got.torch().tolist() == [value + 1.0] * 1000 and got.cpu().numpy()[-1] == value + 1
    assert torch.from_dlpack(got).data_ptr() == got.data_ptr
tp.destroy()
""",
    "workspaces follow torch's stream": """
memory, files = crossrank.SharedMemoryWorkspace(world), crossrank.NFSWorkspace("states", rank=r)
with torch.cuda.stream(side):
    x = torch.full(1000, 0, device=gpu)
    for value, place in ((1, memory), (2, files)):
        delay()
        x.fill_(value + r)
        place.write_configs_and_weights({}, {"x": x})  # of files, a thread of its own writes it
        world.barrier()
        weights = place.read_configs_and_weights_from_rank(1 - r, to=gpu)[1]
        assert weights["x"].torch().tolist() == [value + 1.0 - r] * 1000
        world.barrier()
    delay()
    x.fill_(7 + r)
    with crossrank.get_tensors_parallel(x, group=world, to="cuda") as got:
        assert [item.torch().tolist()[0] for item in got] == ([] if r else [7, 8])
""",
    "a chosen stream": """
x, y = torch.full(1000, 1, device=gpu), crossrank.empty((1000,), "F32", device=gpu)
torch.cuda.current_stream(r).synchronize()
with torch.cuda.stream(side), crossrank.stream(other), crossrank.stream(0, device=f"cuda:{1 - r}"):
    with torch.cuda.stream(other):
        delay()
        x.fill_(2)
    y.copy_from(x)  # in the order of the chosen stream
    taken = y.torch()  # which torch's current stream then waits for
    assert taken.tolist() == [2.0] * 1000
    with crossrank.stream(side.cuda_stream, device=gpu):
        assert y.cpu().numpy()[0] == 2
with torch.cuda.stream(side):
    delay()
    x.fill_(3)
    y.copy_from(x)  # again torch's
    assert y.cpu().numpy()[0] == 3
asked = []
class Foreign:  # of a library whose work is on another stream
    def __dlpack_device__(self): return y.__dlpack_device__()
    def __dlpack__(self, *, stream, max_version=None):
        asked.append(stream)
        with crossrank.stream(other): return y.__dlpack__(stream=stream, max_version=max_version)
with torch.cuda.stream(other):
    delay()
    x.fill_(4)
    y.copy_from(x)
with torch.cuda.stream(side):
    assert crossrank.as_tensor(Foreign()).cpu().numpy()[0] == 4 and asked == [side.cuda_stream]
""",
    "tensors live until the streams have passed": """
y = crossrank.empty((1000,), "F32", device=gpu)
with torch.cuda.stream(other): delay()
x = torch.full(1000, 7, device=gpu)
torch.cuda.current_stream(r).synchronize()
with crossrank.stream(other):
    y.copy_from(x)
    place = x.data_ptr()
    del x
    x = torch.full(1000, 9, device=gpu)  # has the memory of the first one, if that is free
    assert x.data_ptr() != place
    torch.cuda.current_stream(r).synchronize()
    assert y.cpu().numpy().tolist() == [7.0] * 1000
    crossrank.trim(gpu)
    x = torch.full(1000, 9, device=gpu)
    assert x.data_ptr() == place
    z = crossrank.zeros((1000,), "F32", device=gpu)
    with torch.cuda.stream(side):
        taken = z.torch()
        delay()
        taken.fill_(1)  # after the last reference to the library's tensor
    del z, taken
    w = crossrank.zeros((1000,), "F32", device=gpu)
    side.synchronize()
    assert w.cpu().numpy().tolist() == [0.0] * 1000
with torch.cuda.stream(side):
    x = torch.full(1000, r, device=gpu)
    delay()
    request = world.iall_reduce(x)
    del x
    stranger = torch.full(1000, 5, device=gpu)
    request.wait()
    assert stranger.tolist() == [5.0] * 1000
""",
    "vLLM's coordinator": """
from crossrank.compat.vllm_coordinator import GroupCoordinator
with GroupCoordinator([[0, 1]], local_rank=r, use_message_queue_broadcaster=True) as tp, torch.cuda.stream(side):
    assert str(tp.device) == gpu
    delay()
    x = torch.full((1, 1000), r, device=gpu)
    for result, expected in (
        (tp.all_reduce(x), [1.0] * 1000), (tp.all_gather(x, dim=0), [0.0] * 1000 + [1.0] * 1000),
        (tp.reduce_scatter(x, dim=1), [1.0] * 500), (tp.all_gatherv(x), [0.0] * 1000 + [1.0] * 1000),
    ):
        assert str(result.device) == gpu and result.tolist() == expected
    assert tp.broadcast(x, src=1) is x and x.tolist() == [1.0] * 1000
    delay()
    x.fill_(4 + r)
    if r == 0: tp.send(x)
    else:
        got = tp.recv((1, 1000), torch.float32)
        assert str(got.device) == gpu and got.tolist() == [4.0] * 1000
    got = tp.broadcast_tensor_dict({"x": x, "n": 3} if r == 0 else None)
    assert got["n"] == 3 and str(got["x"].device) == gpu and got["x"].tolist() == [4.0] * 1000
""",
    "ModelOpt's gather": """
from crossrank.compat import groups, modelopt
groups.subgroup = lambda ranks: world  # torch.distributed would make it
with torch.cuda.stream(side):
    delay()
    x = torch.full(1000, r, device=gpu)
    with modelopt.get_tensors_parallel(x, [0, 1]) as got:
        assert [str(item.device) for item in got] == ([] if r else ["cpu", "cpu"])
        assert [item.tolist() for item in got] == ([] if r else [[0.0] * 1000, [1.0] * 1000])
""",
    "errors": """
import pytest
x, elsewhere = torch.full(4, 1, device=gpu), torch.full(8, 1, device=f"cuda:{1 - r}")
with pytest.raises(crossrank.UsageError, match="different devices"): world.all_gather(elsewhere, x)
class Strange(torch.Tensor):
    is_cpu = is_cuda = property(lambda self: False)
with pytest.raises(crossrank.UsageError, match="kind of device"):
    world.all_reduce(Strange(x._storage, x.dtype, x.shape))
with pytest.raises(crossrank.UsageError, match="per-thread"):
    with torch.cuda.stream(torch.cuda.Stream(r, 2)): world.all_reduce(x)
with pytest.raises(crossrank.UsageError, match="per-thread"):
    with crossrank.stream(2): pass
wrong = torch.full(4, 1, device=gpu)
wrong.get_device = lambda: 1 - r
with pytest.raises(crossrank.UsageError, match="on another GPU"): crossrank.as_tensor(wrong)
world.all_reduce(x)
assert x.tolist() == [2.0] * 4
import ctypes
handle, graph, relaxed = ctypes.c_void_p(side.cuda_stream), ctypes.c_void_p(), 2
with torch.cuda.stream(side), torch.cuda.context(r):
    torch.cuda.check(torch.cuda.driver.cuStreamBeginCapture_v2(handle, relaxed))
    with pytest.raises(crossrank.UsageError, match="captur"): world.all_reduce(x)
    with pytest.raises(crossrank.UsageError, match="captur"): crossrank.zeros((4,), "F32", device=gpu)
    with pytest.raises(crossrank.UsageError, match="captur"): crossrank.as_tensor(x).cpu()
    torch.cuda.check(torch.cuda.driver.cuStreamEndCapture(handle, ctypes.byref(graph)))
    torch.cuda.check(torch.cuda.driver.cuGraphDestroy(graph))
    world.all_reduce(x)
    assert x.tolist() == [4.0] * 4
""",
}


@pytest.mark.parametrize("backend", ["nccl", "staged"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors_of_torch_on_gpus(ranks, gpus, monkeypatch, name, backend):
    gpus(backend)
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=os.pathsep)
    monkeypatch.setenv("EMULATED_GPU_DELAY_US", "2000")
    ranks(2, START.replace("STAND_IN", repr(str(STAND_IN))) + PROGRAMS[name])


REAL = """
import torch
r = world.rank
gpu = torch.device("cuda", r % torch.cuda.device_count())
torch.cuda.set_device(gpu)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    x = torch.zeros(1 << 20, device=gpu)
    for value in range(20):
        torch.cuda._sleep(1_000_000)
        x.fill_(value + r)
        world.all_reduce(x)
        n = world.world_size
        assert (x == n * value + n * (n - 1) // 2).all()
    tp = crossrank.GroupCoordinator.create(world, [list(range(n))], device_communicator=True)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool):
        mine = torch.ones(3, 4, device=gpu).to(dtype)
        whole = tp.all_gather(mine, dim=0).torch()
        assert whole.device == gpu and whole.dtype == dtype and whole.float().sum() == 12 * n
    assert tp.all_gather(x.reshape(1024, 1024).t()[:4], dim=0).torch().shape == (4 * n, 1024)
    with crossrank.get_tensors_parallel(x, group=world, to=gpu) as got:
        assert all((item.torch() == x).all() for item in got)
tp.destroy()
"""


def test_real_torch_on_a_gpu(ranks):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or os.environ.get("CROSSRANK_CUDA_LIBRARY"):
        pytest.skip("torch finds no GPU")
    ranks(min(2, torch.cuda.device_count()), REAL)
