"""A rank's state as ModelOpt saves it, and `torch.load` of it.

Usage: torch_file.py write FOLDER BYTES       FOLDER/rank_0_state.pth
       torch_file.py read FOLDER OUT QUICK(0|1)
"""

import json
import os
import statistics
import sys
import time

import torch

TENSORS = 64


def write(folder, size):
    os.makedirs(folder)
    length = size // TENSORS // 2
    weights = {
        f"transformer.layers.{i}.weight": (torch.arange(length, dtype=torch.int32) * 7919 + i).to(torch.int16)
        for i in range(TENSORS)
    }
    first = {name: int(tensor[0]) for name, tensor in weights.items()}
    old = os.umask(0o077)
    torch.save({"config": {"layers": TENSORS, "first": first}, "weight": weights}, os.path.join(folder, "rank_0_state.pth"))
    os.umask(old)


def read(folder, out, samples):
    path = os.path.join(folder, "rank_0_state.pth")
    state = torch.load(path)
    assert all(int(tensor[0]) == state["config"]["first"][name] for name, tensor in state["weight"].items())
    size = sum(tensor.nbytes for tensor in state["weight"].values())
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        torch.load(path)
        times.append(1e6 * (time.perf_counter() - start))
    row = {
        "path": "files", "who": "torch_load", "variant": "torch archive", "rank": 0, "ranks": 1, "bytes": size,
        "reads": False, "calls": samples, "min_us": min(times), "median_us": statistics.median(times), "p99_us": max(times),
    }
    with open(out, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2], sys.argv[3], 3 if sys.argv[4] == "1" else 7)
