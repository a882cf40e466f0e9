"""PyTorch's distributed checkpoints: writes one from tensor-parallel shards, or merges one with PyTorch.

Usage: dcp.py write SHARDS OUT     one process per shard, tensors sharded along their first dimension
       dcp.py merge DCP FILE       dcp_to_torch_save
       dcp.py export SHARDS OUT ROWS BYTES     dcp.save and consolidation to safetensors, from memory; times both
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

ROW_PARALLEL = ("o_proj.weight", "down_proj.weight")


def placement(name, tensor):
    if tensor.dim() < 2:
        return Replicate()
    return Shard(1) if name.endswith(ROW_PARALLEL) else Shard(0)


def join(rank, paths, rendezvous_file):
    """Joins the ranks. Returns the weights of this one."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous_file}", rank=rank, world_size=len(paths))
    mesh = init_device_mesh("cpu", (len(paths),))
    return {
        name: DTensor.from_local(tensor.clone(), mesh, [placement(name, tensor)], run_check=False)
        for name, tensor in load_file(paths[rank]).items()
    }


def write_rank(rank, paths, rendezvous_file, out):
    dcp.save(join(rank, paths, rendezvous_file), checkpoint_id=out)
    dist.destroy_process_group()


def export_rank(rank, paths, rendezvous_file, out, rows, size):
    state = join(rank, paths, rendezvous_file)
    writer = HuggingFaceStorageWriter(
        out,
        fqn_to_index_mapping={name: 1 for name in state},
        save_distributed=True,
        enable_consolidation=True,
        thread_count_consolidation=os.cpu_count(),
    )
    if rank == 0:
        os.sync()
    dist.barrier()
    start = time.perf_counter()
    dcp.save(state, storage_writer=writer)
    dist.barrier()
    took = (time.perf_counter() - start) * 1e6
    if rank == 0:
        row = {"path": "export", "who": "dcp_save_and_consolidate", "variant": "bf16", "rank": 0, "ranks": len(paths)}
        row.update(bytes=int(size), reads=False, calls=1, min_us=took, median_us=took, p99_us=took)
        Path(rows).write_text(json.dumps(row) + "\n", encoding="utf-8")
        shutil.rmtree(Path(out) / "sharded", ignore_errors=True)
    dist.destroy_process_group()


def run_ranks(body, shards, *arguments):
    paths = sorted(str(path) for path in Path(shards).glob("rank*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(body, (paths, os.path.join(folder, "rendezvous_file"), *arguments), nprocs=len(paths))


if __name__ == "__main__":
    torch.set_num_threads(max(1, os.cpu_count() // 2))
    if sys.argv[1] == "write":
        run_ranks(write_rank, sys.argv[2], sys.argv[3])
    elif sys.argv[1] == "export":
        run_ranks(export_rank, *sys.argv[2:])
    else:
        Path(sys.argv[3]).parent.mkdir(parents=True)
        dcp_to_torch_save(sys.argv[2], sys.argv[3])
