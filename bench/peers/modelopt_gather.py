"""ModelOpt's get_tensors_parallel and get_configs_parallel, in a gloo group of N processes on this machine.

Usage: modelopt_gather.py gather|configs|barrier OUT QUICK(0|1) RANKS [SIZES...]
Rows have the format of bench/harness/harness.hpp. Its shared memory is too small for 400 tensors; the row says so, and the same
configs then go through its files.
"""

import json
import os
import sys
import tempfile
import time

# torchrun sets this for several ranks: one compute thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TENSOR_COUNTS = (9, 23, 400)


def percentile(ordered, part):
    return ordered[int(part * (len(ordered) - 1) + 0.5)]


def append(out, row):
    with open(out, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def measure(row, calls, call):
    """Times `calls` calls after two warm-up calls."""
    call(0)
    call(1)
    samples = []
    for number in range(2, calls + 2):
        start = time.perf_counter()
        call(number)
        samples.append((time.perf_counter() - start) * 1e6)
    samples.sort()
    row.update(
        calls=calls,
        min_us=samples[0],
        median_us=percentile(samples, 0.5),
        p99_us=percentile(samples, 0.99),
    )


def new_row(path, variant, size, reads):
    return {
        "path": path,
        "who": "modelopt",
        "variant": variant,
        "rank": dist.get_rank(),
        "ranks": dist.get_world_size(),
        "bytes": size,
        "reads": reads,
    }


def run_gather(out, quick, sizes):
    from modelopt.torch.export.distribute import get_tensors_parallel

    rank = dist.get_rank()
    ranks = list(range(dist.get_world_size()))
    for size in sizes:
        words = torch.arange(size // 8, dtype=torch.int64) * 1315423911 + rank
        calls = max(3, min(100, (64 << 20) // size * 10))
        if quick:
            calls = max(3, calls // 5)
        for reads in (False, True):

            def call(number, words=words, reads=reads):
                words[0] = number
                with get_tensors_parallel(words, ranks) as items:
                    for index, item in enumerate(items):
                        assert int(item[0]) == number and item.nbytes == words.nbytes
                        if reads and index > 0:
                            offset = item.numel() - 1
                            assert int((item - words).sum()) == index * offset

            row = new_row("gather", "warm", size, reads)
            measure(row, calls, call)
            append(out, row)


def linear(configs, scales, rank):
    def scalar(value):
        return torch.tensor([float(value)]) if scales else None

    return configs.LinearConfig(
        weight=torch.full((64, 64), float(rank), dtype=torch.bfloat16),
        activation_scaling_factor=scalar(1 + rank),
        weights_scaling_factor=scalar(2 + rank),
    )


def layer(configs, scales, rank):
    """Returns a dense decoder layer: 9 tensors, or 23 with the scales of its seven linear layers."""
    norm = torch.full((64,), float(rank), dtype=torch.bfloat16)
    make = lambda: linear(configs, scales, rank)
    return configs.DecoderLayerConfig(
        decoder_type="llama",
        input_layernorm=configs.LayernormConfig(weight=norm.clone()),
        post_layernorm=configs.LayernormConfig(weight=norm.clone()),
        attention=configs.AttentionConfig(
            qkv=configs.QKVConfig(q=make(), k=make(), v=make()), dense=make()
        ),
        mlp=configs.MLPConfig(fc=make(), gate=make(), proj=make()),
    )


def config_with(configs, count, rank):
    if count < 400:
        return layer(configs, count == 23, rank)
    vector = lambda: torch.full((64,), float(rank), dtype=torch.bfloat16)
    return configs.ModelConfig(
        vocab_embedding=configs.EmbeddingConfig(weight=vector()),
        layers=[layer(configs, False, rank) for _ in range(44)],
        ln_f=configs.LayernormConfig(weight=vector(), bias=vector()),
        lm_head=configs.LinearConfig(weight=vector()),
    )


def run_configs(out, quick):
    import modelopt.torch.export.model_config as configs
    from modelopt.torch.export.distribute import get_configs_parallel

    rank = dist.get_rank()
    ranks = list(range(dist.get_world_size()))

    def gather(count, workspace):
        config = config_with(configs, count, rank)

        def call(_):
            with get_configs_parallel(config, ranks, None, workspace) as items:
                for index, item in enumerate(items):
                    first = item if count < 400 else item.layers[-1]
                    assert float(first.mlp.proj.weight[0, 0]) == float(index)

        return call

    for count in TENSOR_COUNTS:
        calls = 5 if quick else 50 if count < 400 else 10
        if count < 400:
            row = new_row("configs", "warm", count, False)
            measure(row, calls, gather(count, None))
            append(out, row)
        else:
            folder = [tempfile.mkdtemp(prefix="crossrank-bench-") if rank == 0 else None]
            dist.broadcast_object_list(folder, 0)
            row = new_row("configs", "files", count, False)
            measure(row, calls, gather(count, folder[0]))
            append(out, row)
            dist.barrier()
            if rank == 0:
                for name in os.listdir(folder[0]):
                    os.unlink(os.path.join(folder[0], name))
                os.rmdir(folder[0])
    # Run this last: a rank that fails here leaves the others in a barrier that never completes.
    try:
        gather(400, None)(0)
    except Exception as error:
        row = new_row("configs", "warm", 400, False)
        row.update(calls=0, failed=str(error).split(". ")[0][:160])
        append(out, row)
        for peer in ranks[1:]:
            try:
                os.unlink(f"/dev/shm/rank_{peer}_config")
            except FileNotFoundError:
                pass
        os._exit(0)


def run_barrier(out, quick):
    row = new_row("barrier", "warm", 0, False)
    measure(row, 200 if quick else 2000, lambda _: dist.barrier())
    append(out, row)


def worker(rank, ranks, rendezvous, path, out, quick, sizes):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    if path == "gather":
        run_gather(out, quick, sizes)
    elif path == "configs":
        run_configs(out, quick)
    else:
        run_barrier(out, quick)
    dist.destroy_process_group()


def main():
    path, out, quick, ranks = sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
    sizes = [int(size) for size in sys.argv[5:]]
    with tempfile.TemporaryDirectory(prefix="crossrank-bench-") as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        context = mp.start_processes(
            worker, args=(ranks, rendezvous, path, out, quick, sizes), nprocs=ranks, start_method="spawn", join=False
        )
        failing = path == "configs"
        deadline = time.monotonic() + 240
        while any(process.is_alive() for process in context.processes):
            # After the expected failure the first rank exits by itself; the others cannot.
            if failing and not context.processes[0].is_alive():
                for process in context.processes[1:]:
                    process.kill()
                break
            if time.monotonic() > deadline:
                for process in context.processes:
                    process.kill()
                sys.exit("no end within 240 s")
            time.sleep(0.05)
        for process in context.processes:
            process.join()
        if context.processes[0].exitcode != 0:
            sys.exit(f"rank 0 ended with {context.processes[0].exitcode}")


if __name__ == "__main__":
    main()
