"""PyTorch's DDP and `fully_shard` over gloo on the layers of bench/ranks/layer_stack.hpp, measured as bench/ranks/rank_transforms.cpp does.

Usage: torch_transforms.py OUT QUICK(0|1) RANKS. Rows have the format of bench/harness/harness.hpp.
"""

import json
import os
import re
import sys
import tempfile
import time

# torchrun sets this for several ranks: one compute thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH = 12, 2048
BYTES = LAYERS * 2 * (WIDTH * WIDTH + WIDTH) * 4


class Work:
    """What a layer does in the backward pass before its gradients are ready."""

    kind, wait, rounds, gradient = "none", 0.0, 0, 1.0

    @classmethod
    def compute(cls):
        if cls.kind == "waiting":
            time.sleep(cls.wait)
        elif cls.kind == "computing":
            busy_rounds(cls.rounds)


def busy_rounds(rounds, a=torch.full((64, 64), 0.01), b=torch.full((64, 64), 0.01)):
    """Computes on data that stays in the fastest cache."""
    with torch.no_grad():
        for _ in range(rounds):
            torch.mm(a, b)


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.shapes = [parameter.shape for parameter in parameters]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Work.compute()
        one = torch.full((1,), Work.gradient)
        return (gradient, *(one.expand(shape) for shape in ctx.shapes))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("up", "down"):
            self.register_parameter(f"{name}_weight", torch.nn.Parameter(torch.full((WIDTH, WIDTH), 0.5)))
            self.register_parameter(f"{name}_bias", torch.nn.Parameter(torch.full((WIDTH,), 0.5)))

    def forward(self, x):
        for parameter in self.parameters():
            assert parameter.view(-1)[0] == 0.5 and parameter.view(-1)[-1] == 0.5
        return Pass.apply(x, *self.parameters())


class Stack(torch.nn.Sequential):
    def __init__(self):
        super().__init__(*(Layer() for _ in range(LAYERS)))


class Launch:
    def __init__(self, quick):
        self.steps, self.rows = 3 if quick else 5, []

    def row(self, variant, **fields):
        self.rows.append({"path": "transforms", "who": "torch", "variant": variant, "rank": dist.get_rank(),
                          "ranks": dist.get_world_size(), "bytes": BYTES, "reads": False, **fields})

    def add(self, variant, value):
        self.row(variant, min_us=value, median_us=value, p99_us=value)

    def time(self, variant, prepare, step):
        """Measures steps after two to warm up, each after a barrier. Returns the median of the times of the slowest rank."""
        times = []
        for i in range(self.steps + 2):
            run = prepare()
            dist.barrier()
            start = time.perf_counter()
            step(run)
            slowest = torch.tensor([(time.perf_counter() - start) * 1e6], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if i >= 2:
                times.append(slowest.item())
        times.sort()
        self.row(variant, calls=self.steps, min_us=times[0], median_us=times[len(times) // 2], p99_us=times[-1])
        return times[len(times) // 2]

    def communication(self, name, prepare, step, local_prepare, local_step):
        """Returns the time that communication adds to a step."""
        whole = self.time(f"{name} step", prepare, step)
        local = self.time(f"{name} local step", local_prepare, local_step)
        self.add(f"{name} communication", max(1.0, whole - local))
        return max(1.0, whole - local)

    def overlap(self, name, communication, prepare, step, local_prepare, local_step):
        """Measures what remains of it behind both kinds of backward passes."""
        of_layer = 2 * communication / LAYERS
        Work.wait = of_layer / 1e6
        busy_rounds(1000)
        dist.barrier()  # all ranks compute at the same time, as in a step
        start = time.perf_counter()
        busy_rounds(5000)
        of_round = torch.tensor([(time.perf_counter() - start) * 1e6 / 5000])
        dist.all_reduce(of_round)
        Work.rounds = int(of_layer / (of_round.item() / dist.get_world_size())) + 1
        for kind in ("waiting", "computing"):
            Work.kind = kind
            local = self.time(f"{name} {kind} local step", local_prepare, local_step)
            whole = self.time(f"{name} {kind} step", prepare, step)
            self.add(f"{name} {kind} exposed", max(0.0, whole - local))
        Work.kind = "none"


def run_ddp(launch):
    model = DistributedDataParallel(Stack(), gradient_as_bucket_view=True)
    start = torch.zeros(1, requires_grad=True)

    def prepare():
        """Runs the forward pass, and keeps the gradients as views of the buckets, which saves a copy of them."""
        model.zero_grad(set_to_none=False)
        return model(start)

    def local_prepare():
        model.zero_grad(set_to_none=False)
        with model.no_sync():
            return model(start)

    steps = (prepare, lambda out: out.backward(), local_prepare, lambda out: out.backward())
    launch.overlap("ddp", launch.communication("ddp", *steps), *steps)
    prepare().backward()
    check(parameter.grad for parameter in model.parameters())


def check(gradients):
    expected = (dist.get_world_size() + 1) / 2
    for gradient in gradients:
        assert gradient.reshape(-1)[0] == expected and gradient.reshape(-1)[-1] == expected


def sharded():
    model = Stack()
    for layer in model:
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model, reshard_after_forward=True)
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no average
    return model


def run_fully_shard(launch):
    model = sharded()
    start = torch.zeros(1, requires_grad=True)
    launch.time("fully_shard step", model.zero_grad, lambda _: model(start).backward())
    check(parameter.grad.to_local() for parameter in model.parameters())


def status_bytes(field):
    with open("/proc/self/status", encoding="utf-8") as status:
        return int(re.search(field + r":\s+(\d+) kB", status.read())[1]) * 1024


def run_memory(launch):
    """Counts all memory but pages of files, which are code, that the process did not have before the model was made."""
    before = status_bytes("VmRSS") - status_bytes("RssFile")
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.zeros(1, requires_grad=True)).backward()
        optimizer.step()
    launch.row("fully_shard memory", peak_bytes=status_bytes("VmHWM") - status_bytes("RssFile") - before)


def worker(rank, ranks, rendezvous, out, quick):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    Work.gradient = float(rank + 1)
    launch = Launch(quick)
    run_memory(launch)
    run_ddp(launch)
    run_fully_shard(launch)
    with open(out, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in launch.rows))
    dist.barrier()
    os._exit(0)  # gloo's threads can abort a process that ends in the ordinary way


def main():
    out, quick, ranks = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])
    with tempfile.TemporaryDirectory(prefix="crossrank-bench-") as folder:
        mp.start_processes(worker, args=(ranks, f"{folder}/rendezvous", out, quick), nprocs=ranks, start_method="spawn")


if __name__ == "__main__":
    main()
