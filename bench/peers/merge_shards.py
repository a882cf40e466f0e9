"""Merges shards without a tool: one process loads all shards, joins them and saves a sharded checkpoint.

Usage: merge_shards.py SHARDS OUT
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROW_PARALLEL = ("o_proj.weight", "down_proj.weight", "o_proj.weight_scale", "down_proj.weight_scale")
LARGEST_FILE = 5_000_000_000


def axis_of(name, tensor):
    if tensor.dim() < 2:
        return None
    return 1 if name.endswith(ROW_PARALLEL) else 0


def join(name, shards):
    axis = axis_of(name, shards[0])
    if axis is None:
        return shards[0]
    if shards[0].dtype is torch.float8_e4m3fn:
        return torch.cat([shard.view(torch.uint8) for shard in shards], dim=axis).view(torch.float8_e4m3fn)
    return torch.cat(shards, dim=axis)


def files_of(merged):
    files, filled = [{}], 0
    for name, tensor in merged.items():
        size = tensor.nbytes
        if files[-1] and filled + size > LARGEST_FILE:
            files.append({})
            filled = 0
        files[-1][name] = tensor
        filled += size
    return files


def main():
    shards_path, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True)
    paths = sorted(shards_path.glob("rank*.safetensors"))
    shards = [load_file(path) for path in paths]
    merged = {name: join(name, [shard[name] for shard in shards]) for name in shards[0]}
    files = files_of(merged)
    index = {}
    for number, tensors in enumerate(files):
        name = "model.safetensors"
        if len(files) > 1:
            name = f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        save_file(tensors, out / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(tensors, name))
    if len(files) > 1:
        total = sum(tensor.nbytes for tensor in merged.values())
        (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    for path in shards_path.glob("*.json"):
        (out / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
