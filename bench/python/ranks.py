"""One rank of a measurement. Usage: ranks.py WHAT WHO RANK RANKS STORE OUT QUICK(0|1) SIZES...

Rank 0 appends one JSON object per workload to OUT: what, who, variant, ranks, bytes, median_us, min_us. WHAT is `torch`
(WHO: crossrank or gloo), `queue` (crossrank or vllm) or `gather` (crossrank or modelopt). Every result is checked.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
import torch.distributed as dist

torch.set_num_threads(1)


def measure(calls: int, call: Callable[[], None], start_together: bool) -> tuple[float, float]:
    """Returns median and minimum of one call, in microseconds, over `calls` calls after three warm-up calls.

    `start_together` puts a barrier before each call. It is for calls that some ranks end early; the ranks leave a barrier
    of gloo some 100 us apart, which such a call then contains.
    """
    for _ in range(3):
        call()
    samples = []
    for _ in range(calls):
        if start_together:
            dist.barrier()
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e6)
    samples.sort()
    return samples[len(samples) // 2], samples[0]


def calls_for(size: int, quick: bool) -> int:
    """Returns how often a workload of that size is called."""
    return max(5, min(500, (256 << 20) // size) // (5 if quick else 1))


def torch_workloads(size: int, rank: int, ranks: int) -> dict[str, Callable[[], None]]:
    """Returns the collectives that are measured, each with a check of its result."""
    count = size // 4
    values, joined = torch.empty(count), torch.empty(count)

    def all_reduce() -> None:
        values.fill_(rank + 1)
        dist.all_reduce(values)
        assert values[0] == values[-1] == ranks * (ranks + 1) / 2

    def all_gather() -> None:
        part = values[: count // ranks]
        part.fill_(rank)
        dist.all_gather_into_tensor(joined[: count // ranks * ranks], part)
        assert joined[0] == 0 and joined[count // ranks * ranks - 1] == ranks - 1

    def broadcast() -> None:
        values.fill_(7 if rank == 0 else 0)
        dist.broadcast(values, src=0)
        assert values[0] == values[-1] == 7

    return {"all_reduce": all_reduce, "all_gather": all_gather, "broadcast": broadcast}


def queue_workloads(who: str, size: int, rank: int, ranks: int) -> dict[str, Callable[[], None]]:
    """Returns a broadcast of one object of `size` bytes, followed by an answer of each reader."""
    if who == "vllm":
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    else:
        from crossrank.compat.vllm import MessageQueue
    queue = MessageQueue.create_from_process_group(dist.group.WORLD, 4 << 20, 6)
    message = b"x" * size

    def exchange() -> None:
        got = queue.broadcast_object(message if rank == 0 else None)
        assert len(got) == size

    return {"broadcast_object": exchange}


def gather_workloads(who: str, size: int, rank: int, ranks: int) -> dict[str, Callable[[], None]]:
    """Returns gathers of one tensor of each rank on rank 0: by ModelOpt's function, and by crossrank's own beside it."""
    words = torch.full((size // 8,), rank, dtype=torch.int64)
    if who == "modelopt":
        from modelopt.torch.export.distribute import get_tensors_parallel
    else:
        from crossrank.compat.modelopt import get_tensors_parallel

    def gather_as_modelopt() -> None:
        with get_tensors_parallel(words, list(range(ranks))) as received:
            assert all(item[-1] == index for index, item in enumerate(received))

    if who == "modelopt":
        return {"get_tensors_parallel of ModelOpt": gather_as_modelopt}

    import crossrank
    from crossrank.compat import groups

    world = groups.world()

    def gather() -> None:
        with crossrank.get_tensors_parallel(words, group=world) as received:
            assert sum(item.nbytes for item in received) == (ranks * size if rank == 0 else 0)

    with crossrank.get_tensors_parallel(words, group=world) as received:
        assert all(item.torch()[-1] == index for index, item in enumerate(received))
    return {"get_tensors_parallel": gather, "get_tensors_parallel of ModelOpt": gather_as_modelopt}


def main() -> None:
    what, who, rank, ranks, store, out, quick = sys.argv[1:8]
    sizes = [int(size) for size in sys.argv[8:]]
    backend = "gloo" if what != "torch" or who == "gloo" else "crossrank"
    if backend == "crossrank":
        import crossrank.torch  # noqa: F401 - registers the backend
    os.environ.update(RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=ranks)
    dist.init_process_group(backend, init_method="file://" + store, rank=int(rank), world_size=int(ranks))
    for size in sizes:
        if what == "torch":
            workloads = torch_workloads(size, int(rank), int(ranks))
        elif what == "queue":
            workloads = queue_workloads(who, size, int(rank), int(ranks))
        else:
            workloads = gather_workloads(who, size, int(rank), int(ranks))
        for variant, call in workloads.items():
            median, least = measure(calls_for(size, quick == "1"), call, start_together=what != "gather")
            if rank == "0":
                row = {"what": what, "who": who, "variant": variant, "ranks": int(ranks), "bytes": size}
                with open(out, "a", encoding="utf-8") as file:
                    file.write(json.dumps({**row, "median_us": median, "min_us": least}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
