"""Tensors on GPUs, without torch. The driver and NCCL are emulated."""

import os
import pathlib

import pytest

pytest.importorskip("numpy")

START = """
import numpy, pytest
n, r = world.world_size, world.rank
gpu = crossrank.default_device()
assert gpu == f"cuda:{r}", gpu
def on_gpu(values, dtype=numpy.float32):
    return crossrank.as_tensor(numpy.asarray(values, dtype)).to("cuda")
def values(tensor):
    assert tensor.device == gpu, tensor.device
    return tensor.cpu().numpy()
"""

PROGRAMS = {
    "copies and views": """
host = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
tensor = on_gpu(host)
assert tensor.device == gpu and tensor.shape == (2, 3) and repr(tensor) == f"crossrank.Tensor(F32 [2, 3] on {gpu})"
assert (values(tensor) == host).all() and tensor.cpu().device == "cpu" and tensor.to(gpu).data_ptr == tensor.data_ptr
assert (values(tensor.narrow(0, 1, 1)) == host[1:]).all() and (values(tensor.reshape((6,))) == host.reshape(6)).all()
assert tensor.to("BF16").dtype == "BF16" and tensor.to("BF16").device == gpu
assert (values(crossrank.concat([tensor, tensor], dim=1)) == numpy.concatenate([host, host], 1)).all()
mine = tensor.clone()
mine.copy_from(host + 1)
assert (values(mine) == host + 1).all() and (values(tensor) == host).all()
assert (values(crossrank.zeros((3,), "F32", device=gpu)) == 0).all()
assert crossrank.empty((0, 3), "F32", device="cuda").cpu().numpy().shape == (0, 3)
other = on_gpu(host).to(f"cuda:{1 - r}")
assert other.device == f"cuda:{1 - r}" and (other.cpu().numpy() == host).all()
""",
    "what the host cannot read": """
tensor = crossrank.zeros((2, 3), "F32", device=gpu)
for read in (tensor.numpy, tensor.tobytes, lambda: numpy.asarray(tensor)):
    with pytest.raises(crossrank.UsageError, match=r"cpu\\(\\)"): read()
for read in (lambda: memoryview(tensor), lambda: bytes(tensor)):
    with pytest.raises(BufferError, match=r"cpu\\(\\)"): read()
for name in ("gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda0", 7):
    with pytest.raises(crossrank.UsageError, match="name of a device"): crossrank.empty((2,), "F32", device=name)
with pytest.raises(crossrank.UsageError, match="Unicode"): tensor.to("\\ud800")
with pytest.raises(crossrank.UsageError, match="no such GPU"): crossrank.empty((2,), "F32", device="cuda:2")
with pytest.raises(crossrank.UsageError, match="different devices"):
    world.all_gather(crossrank.empty((4, 3), "F32", device=f"cuda:{1 - r}"), tensor)
with pytest.raises(crossrank.UsageError, match="differ in dtype or shape"): tensor.copy_from(numpy.zeros(5))
with pytest.raises(crossrank.UnavailableError, match="memory"): crossrank.empty((1 << 40,), "U8", device=gpu)
""",
    "collectives": """
x = on_gpu([[r, 1.0], [2, 3]])
world.all_reduce(x)
assert (values(x) == [[1, 2], [4, 6]]).all()
world.all_reduce(x, op="max", order="rank")
mine, all_of_them = on_gpu([r]), crossrank.empty((2,), "F32", device=gpu)
world.all_gather(all_of_them, mine)
assert (values(all_of_them) == [0, 1]).all()
world.broadcast(mine, root=1)
assert values(mine) == [1]
part = crossrank.empty((1, 2), "F32", device=gpu)
world.reduce_scatter(part, x)
assert (values(part) == 2 * numpy.array([[1, 2], [4, 6]])[r]).all()
swapped = crossrank.empty((2, 2), "F32", device=gpu)
world.all_to_all(swapped, on_gpu([[r, 0], [r, 1]]))
assert (values(swapped) == [[0, r], [1, r]]).all()
request = world.iall_reduce(mine)
request.wait()
assert values(mine) == [2] and world.device_backend == BACKEND
long = numpy.arange(50_000) % 251
if r == 0: world.send(on_gpu(long), dst=1)
else:
    got = crossrank.empty((50_000,), "F32", device=gpu)
    world.recv(got, src=0)
    assert (values(got) == long).all()
with pytest.raises(crossrank.MismatchError):
    world.all_reduce(x if r == 0 else numpy.zeros((2, 2), numpy.float32))
    values(x)  # a rank that was faster has enqueued its call
""",
    "coordinator": """
tp = crossrank.GroupCoordinator.create(world, [[0, 1]], device_communicator=True, broadcaster=True)
assert tp.device == gpu and tp.device_group.world_size == 2
x = on_gpu([[r, 1.0]])
assert (values(tp.all_reduce(x)) == [[1, 2]]).all()
assert (values(tp.all_gather(x, dim=0)) == [[0, 1], [1, 1]]).all() and (values(tp.all_gatherv(x)) == [[0, 1], [1, 1]]).all()
assert (values(tp.reduce_scatter(x, dim=1)) == ([[1]], [[2]])[r]).all()
whole = tp.gather(x, dim=0)
assert (whole is None) if r else (values(whole) == [[0, 1], [1, 1]]).all()
assert tp.broadcast(x, src=1) is x and (values(x) == [[1, 1]]).all()
if r == 0: tp.send(x, dst=1)
else: assert (values(tp.recv((1, 2), "F32", src=0)) == [[1, 1]]).all()
sent = {"on": x, "off": numpy.arange(3.0), "n": 7, "deep": {"on": x}}
for got in (tp.broadcast_tensor_dict(sent if r == 0 else None), None if r == 0 else tp.recv_tensor_dict(src=0)):
    if got is None: tp.send_tensor_dict(sent, dst=1)
    else:
        assert (values(got["on"]) == [[1, 1]]).all() and (values(got["deep"]["on"]) == [[1, 1]]).all()
        assert got["off"].device == "cpu" and got["n"] == 7
tokens = tp.dispatch(on_gpu([[r] * 2]), on_gpu([[r]]), is_sequence_parallel=True, extra_tensors=[on_gpu([r])])
assert (values(tokens.hidden_states) == [[0, 0], [1, 1]]).all() and (values(tokens.extra_tensors[0]) == [0, 1]).all()
assert (values(tp.combine(tokens.hidden_states, tokens.route)) == [[2 * r] * 2]).all()
tp.destroy()
""",
    "queue": """
with crossrank.MessageQueue.create(world, chunk_bytes=1 << 12) as queue:
    sent = numpy.arange(5000, dtype=numpy.float32)  # longer than a chunk
    if queue.is_writer:
        queue.enqueue_tensor(on_gpu(sent))
        queue.enqueue_dict({"on": on_gpu(sent), "off": sent, "n": [1, None]})
    else:
        assert (values(queue.dequeue_tensor()) == sent).all()
        got = queue.dequeue_dict()
        assert (values(got["on"]) == sent).all() and got["off"].device == "cpu" and got["n"] == [1, None]
""",
    "gathers": """
mine = on_gpu([r, 10 + r])
for options in ({}, {"to": "cuda"}, {"workspace_path": "files"}, {"workspace_path": "files", "to": gpu}):
    with crossrank.get_tensors_parallel(mine, group=world, **options) as got:
        for rank, item in enumerate(got):
            assert item.device == (gpu if "to" in options else "cpu"), (rank, item.device, options)
            assert (item.cpu().numpy() == [rank, 10 + rank]).all()
    with crossrank.get_configs_parallel({"r": r}, {"w": mine, "h": numpy.ones(2)}, group=world, **options) as got:
        for state in got:
            assert (state.weights["w"].cpu().numpy() == [state.rank, 10 + state.rank]).all()
            assert (state.weights["h"].cpu().numpy() == 1).all()
shared = crossrank.zeros((2,), "F32", device=gpu, shareable=True)
shared.copy_from(mine)
with crossrank.get_tensors_parallel({"w": shared}, group=world, in_place=True) as got:
    for rank, item in enumerate(got):
        view = item["w"]
        assert view.device == f"cuda:{rank}" and (view.cpu().numpy() == [rank, 10 + rank]).all()
        if rank:
            assert view.readonly
            with pytest.raises(crossrank.UsageError): view.copy_from(numpy.zeros(2, numpy.float32))
    if got: del item, view
""",
    "workspaces": """
mine = on_gpu([r, 10 + r])
memory = crossrank.SharedMemoryWorkspace(world)
files = crossrank.NFSWorkspace("states", rank=r)
for place in (memory, files):
    place.write_configs_and_weights({"r": r}, {"w": mine})
world.barrier()
for place in (memory, files):
    for to in ("cpu", "cuda"):
        config, weights = place.read_configs_and_weights_from_rank(1 - r, to=to)
        assert config == {"r": 1 - r} and weights["w"].device == ("cpu" if to == "cpu" else gpu)
        assert (weights["w"].cpu().numpy() == [1 - r, 11 - r]).all()
del weights
world.barrier()
shared = memory.empty((2,), "F32", device=gpu)
shared.copy_from(mine)
memory.write_configs_and_weights({}, {"w": shared}, in_place=True)
world.barrier()
view = memory.read_configs_and_weights_from_rank(1 - r, in_place=True)[1]["w"]
assert view.device == f"cuda:{1 - r}" and view.readonly and (view.cpu().numpy() == [1 - r, 11 - r]).all()
del view
world.barrier()
""",
    "meshes": """
job = crossrank.MeshCollective(world, tp_size=2)
parts = [crossrank.empty((2,), "F32", device=gpu) for _ in range(2)]
job.all_gather_to_list(parts, on_gpu([r, r]))
assert [values(part).tolist() for part in parts] == [[0, 0], [1, 1]]
""",
    "DLPack": """
class Foreign:
    def __init__(self, tensor, made_on): self.tensor, self.made_on, self.streams = tensor, made_on, []
    def __dlpack_device__(self): return self.tensor.__dlpack_device__()
    def __dlpack__(self, *, stream, max_version=None):
        self.streams.append(stream)
        with crossrank.stream(self.made_on, device=gpu): return self.tensor.__dlpack__(stream=stream, max_version=max_version)
tensor = on_gpu([1, 2, 3])
assert tensor.__dlpack_device__() == (2, r)
foreign = Foreign(tensor, 0)
taken = crossrank.as_tensor(foreign)
assert taken.data_ptr == tensor.data_ptr and taken.device == gpu and foreign.streams == [1]
world.all_reduce(Foreign(tensor, 0))
assert (values(taken) == [2, 4, 6]).all()
assert (numpy.from_dlpack(tensor, device="cpu") == [2, 4, 6]).all()
for bad, error in (({"stream": 0}, crossrank.UsageError), ({"stream": 2}, crossrank.UsageError),
                   ({"dl_device": (1, 0), "copy": False}, BufferError), ({"dl_device": (2, 1 - r)}, BufferError),
                   ({"dl_device": (8, 0)}, BufferError)):
    with pytest.raises(error): tensor.__dlpack__(max_version=(1, 1), **bad)
with pytest.raises(crossrank.UsageError): crossrank.as_tensor(numpy.ones(2)).__dlpack__(stream=1)
copy = crossrank.as_tensor(Foreign(tensor, 0)).clone()
del foreign, taken, tensor
assert (values(copy) == [2, 4, 6]).all()
""",
}


@pytest.mark.parametrize("backend", ["nccl", "staged"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors_on_gpus(ranks, gpus, name, backend):
    gpus(backend)
    ranks(2, START + f"BACKEND = {backend!r}\n" + PROGRAMS[name])


def test_without_a_driver(ranks, gpus, monkeypatch):
    monkeypatch.setenv("CROSSRANK_CUDA_LIBRARY", "/nonexistent/libcuda.so.1")
    ranks(
        1,
        """
import pytest
assert crossrank.default_device() == "cpu"
for call in (lambda: crossrank.empty((2,), "F32", device="cuda"), lambda: crossrank.zeros((2,), "F32", device="cuda:0"),
             lambda: crossrank.zeros((2,), "F32").to("cuda:0")):
    with pytest.raises(crossrank.UnavailableError, match="libcuda"): call()
with pytest.raises(crossrank.UsageError, match="CPU has no streams"):
    with crossrank.stream(0, device="cpu"): pass
with pytest.raises(crossrank.UsageError, match="not a GPU"): crossrank.trim("cpu")
group = crossrank.GroupCoordinator.create(world, [[0]], device_communicator=True)
assert group.device == "cpu" and group.all_reduce(crossrank.zeros((2,), "F32")).device == "cpu"
""",
    )


def test_opens_the_nccl_that_torch_will_load(ranks, gpus, monkeypatch, tmp_path):
    gpus("nccl")
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2").write_bytes(pathlib.Path(os.environ["CROSSRANK_NCCL_LIBRARY"]).read_bytes())
    monkeypatch.delenv("CROSSRANK_NCCL_LIBRARY")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    ranks(
        2,
        START
        + f"""
world.all_reduce(on_gpu([1.0]))
loaded = {{line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line}}
assert loaded == {{"{folder}/libnccl.so.2"}}, loaded
""",
    )


LEAKS = """
import ctypes, os, time
driver = ctypes.CDLL(os.environ["CROSSRANK_CUDA_LIBRARY"])
driver.emulated_live.restype = ctypes.c_ulonglong
def alive():
    crossrank.trim(gpu)  # the library keeps events for reuse
    return {kind: driver.emulated_live(kind.encode()) for kind in ("allocation", "host", "stream", "event")}
tp = crossrank.GroupCoordinator.create(world, [[0, 1]], device_communicator=True, broadcaster=True)
queue = crossrank.MessageQueue.create(world, chunk_bytes=1 << 16)
x = on_gpu(range(20_000))
def step():
    y = x.clone()
    world.iall_reduce(y).wait()
    tp.all_gather(y, dim=0)
    tp.broadcast_tensor_dict({"x": y} if r == 0 else None)
    if queue.is_writer: queue.enqueue_tensor(y)
    else: queue.dequeue_tensor()
    with crossrank.get_tensors_parallel(y, group=world, to="cuda") as got:
        for item in got: item.cpu()
    request = world.isend(y, dst=1 - r)
    world.recv(x, src=1 - r)
    request.wait()
    x.cpu()
def rounds(count):
    for _ in range(count):
        step()
        world.barrier()
def wait_until_at_most(limit):
    until = time.monotonic() + 10  # the watchdog of a group drops the events of calls ten times a second
    while any((now := alive())[kind] > limit[kind] for kind in limit) and time.monotonic() < until:
        time.sleep(0.05)
    return now
rounds(20)
before = wait_until_at_most({"event": 8})
rounds(60)
after = wait_until_at_most(before)
assert all(after[kind] <= before[kind] for kind in before), (before, after)
"""


@pytest.mark.parametrize("backend", ["nccl", "staged"])
def test_rounds_on_gpus_leak_nothing(ranks, gpus, monkeypatch, backend):
    gpus(backend)
    monkeypatch.setenv("EMULATED_GPU_DELAY_US", "0")
    ranks(2, START + LEAKS)


def test_ctrl_c_ends_a_wait_for_a_gpu(ranks, gpus, monkeypatch):
    monkeypatch.setenv("EMULATED_GPU_HANG", "1")
    ranks(
        1,
        """
import os, signal, threading, time
import numpy
stuck = crossrank.zeros((4,), "F32", device="cuda").to("BF16")  # by a kernel that hangs
mine = crossrank.SharedMemoryWorkspace(world)
for wait in (stuck.cpu, lambda: stuck.to("cpu"), lambda: numpy.from_dlpack(stuck, device="cpu"),
             lambda: crossrank.zeros((4,), "BF16").copy_from(stuck), lambda: mine.write_configs_and_weights({}, {"w": stuck})):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try: wait()
    except KeyboardInterrupt: waited = time.monotonic() - begin
    else: raise AssertionError("no exception")
    assert 0.2 < waited < 2, waited
os._exit(0)  # the end of the process would wait for the kernel
""",
    )


@pytest.mark.parametrize("backend", ["nccl", "staged"])
def test_a_killed_rank_ends_a_call_on_gpus(ranks, gpus, backend):
    gpus(backend)
    done = ranks(
        2,
        START
        + """
import os, signal, time
x = on_gpu([1] * 1000)
world.all_reduce(x)
if r == 1: os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    while True:
        world.all_reduce(x)
        x.cpu()
except crossrank.PeerLostError as error:
    assert error.failed_ranks == (1,), error
    assert time.monotonic() - begin < 10
    print("named")
""",
        check=False,
    )
    assert "named" in done.stdout, done.stdout + done.stderr
