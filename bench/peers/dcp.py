"""PyTorch's distributed checkpoints: writes one from tensor-parallel shards, or merges one with PyTorch.

Usage: dcp.py write SHARDS OUT     one process per shard, tensors sharded along their first dimension
       dcp.py merge DCP FILE       dcp_to_torch_save
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

ROW_PARALLEL = ("o_proj.weight", "down_proj.weight")


def placement(name, tensor):
    if tensor.dim() < 2:
        return Replicate()
    return Shard(1) if name.endswith(ROW_PARALLEL) else Shard(0)


def write_rank(rank, paths, out, rendezvous_file):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous_file}", rank=rank, world_size=len(paths))
    mesh = init_device_mesh("cpu", (len(paths),))
    state = {
        name: DTensor.from_local(tensor, mesh, [placement(name, tensor)], run_check=False)
        for name, tensor in load_file(paths[rank]).items()
    }
    dcp.save(state, checkpoint_id=out)
    dist.destroy_process_group()


def write(shards, out):
    paths = sorted(str(path) for path in Path(shards).glob("rank*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(write_rank, (paths, out, os.path.join(folder, "rendezvous_file")), nprocs=len(paths))


if __name__ == "__main__":
    torch.set_num_threads(max(1, os.cpu_count() // 2))
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3])
    else:
        Path(sys.argv[3]).parent.mkdir(parents=True)
        dcp_to_torch_save(sys.argv[2], sys.argv[3])
