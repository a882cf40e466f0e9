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


class Workload:
    """A call that is measured. `prepare` runs before each call and `check` after it; neither is part of the time."""

    def __init__(
        self,
        call: Callable[[], None],
        prepare: Callable[[], None] = lambda: None,
        check: Callable[[], None] = lambda: None,
        per_call: int = 1,
        start_together: bool = True,
    ) -> None:
        """`per_call` is the number of operations in a call, `start_together` puts a barrier before each call."""
        self.call, self.prepare, self.check = call, prepare, check
        self.per_call, self.start_together = per_call, start_together

    def measure(self, calls: int) -> tuple[float, float]:
        """Returns median and minimum of one operation, in microseconds, over `calls` calls after three warm-up calls.

        The ranks leave the barrier of gloo some 100 us apart, which the time of a short call then contains.
        """
        samples = []
        for _ in range(calls + 3):
            self.prepare()
            if self.start_together:
                dist.barrier()
            start = time.perf_counter()
            self.call()
            samples.append((time.perf_counter() - start) * 1e6 / self.per_call)
            self.check()
        samples = sorted(samples[3:])
        return samples[len(samples) // 2], samples[0]


def calls_for(size: int, quick: bool) -> int:
    """Returns how often a workload of that size is called."""
    return max(5, min(500, (256 << 20) // size) // (5 if quick else 1))


def torch_workloads(size: int, rank: int, ranks: int) -> dict[str, Workload]:
    """Returns the collectives that are measured, each with a check of its result."""
    count = size // 4
    values, joined = torch.empty(count), torch.empty(count)
    part, whole = values[: count // ranks], joined[: count // ranks * ranks]

    def check_reduced() -> None:
        assert values[0] == values[-1] == ranks * (ranks + 1) / 2

    def check_gathered() -> None:
        assert whole[0] == 0 and whole[-1] == ranks - 1

    def check_broadcast() -> None:
        assert values[0] == values[-1] == 7

    return {
        "all_reduce": Workload(lambda: dist.all_reduce(values), lambda: values.fill_(rank + 1), check_reduced),
        "all_gather": Workload(lambda: dist.all_gather_into_tensor(whole, part), lambda: part.fill_(rank), check_gathered),
        "broadcast": Workload(
            lambda: dist.broadcast(values, src=0), lambda: values.fill_(7 if rank == 0 else 0), check_broadcast
        ),
    }


def queue_workloads(who: str, size: int, rank: int, ranks: int) -> dict[str, Workload]:
    """Returns broadcasts of objects of `size` bytes: many in a row, and one that the last rank answers.

    The answer of the last rank ends the call on the writer, so the time covers the readers.
    """
    if who == "vllm":
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    else:
        from crossrank.compat.vllm import MessageQueue
    requests = MessageQueue.create_from_process_group(dist.group.WORLD, 4 << 20, 6)
    answers = MessageQueue.create_from_process_group(dist.group.WORLD, 4 << 20, 6, writer_rank=ranks - 1)
    message = b"x" * size

    def exchange(messages: int) -> None:
        for _ in range(messages):
            got = requests.broadcast_object(message if rank == 0 else None)
            assert len(got) == size
        assert answers.broadcast_object("done" if rank == ranks - 1 else None) == "done"

    in_a_row = 64
    return {
        "broadcast_object, many": Workload(lambda: exchange(in_a_row), per_call=in_a_row),
        "broadcast_object and answer": Workload(lambda: exchange(1), start_together=False),
    }


def gather_workloads(who: str, size: int, rank: int, ranks: int) -> dict[str, Workload]:
    """Returns gathers of one tensor of each rank on rank 0: by ModelOpt's function, and by crossrank's own beside it.

    The tensor "in shared memory" is one that crossrank has moved there before. ModelOpt gets the same tensor as before.
    """
    words = torch.full((size // 8,), rank, dtype=torch.int64)
    if who == "modelopt":
        from modelopt.torch.export.distribute import get_tensors_parallel
    else:
        from crossrank.compat.modelopt import get_tensors_parallel

    def gather_as_modelopt(tensor: torch.Tensor) -> None:
        with get_tensors_parallel(tensor, list(range(ranks))) as received:
            assert all(item[-1] == index for index, item in enumerate(received))

    def modelopt_workloads(shared: torch.Tensor) -> dict[str, Workload]:
        return {
            "get_tensors_parallel of ModelOpt": Workload(lambda: gather_as_modelopt(words), start_together=False),
            "get_tensors_parallel of ModelOpt, in shared memory": Workload(
                lambda: gather_as_modelopt(shared), start_together=False
            ),
        }

    if who == "modelopt":
        return modelopt_workloads(words)

    import crossrank
    import crossrank.torch
    from crossrank.compat import groups

    world = groups.world()
    module = torch.nn.Module()
    module.register_buffer("words", words.clone())
    crossrank.torch.share_memory(module)

    def gather() -> None:
        with crossrank.get_tensors_parallel(words, group=world) as received:
            assert sum(item.nbytes for item in received) == (ranks * size if rank == 0 else 0)

    with crossrank.get_tensors_parallel(words, group=world) as received:
        assert all(item.torch()[-1] == index for index, item in enumerate(received))
    return {
        "get_tensors_parallel": Workload(gather, start_together=False),
        **modelopt_workloads(module.words),
    }


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
        for variant, workload in workloads.items():
            median, least = workload.measure(calls_for(size * workload.per_call, quick == "1"))
            if rank == "0":
                row = {"what": what, "who": who, "variant": variant, "ranks": int(ranks), "bytes": size}
                with open(out, "a", encoding="utf-8") as file:
                    file.write(json.dumps({**row, "median_us": median, "min_us": least}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
