"""Loads a checkpoint. Usage: load.py make FOLDER BYTES | load.py crossrank|safetensors FOLDER OUT

`make` writes a model of that size in two files. The other calls append rows to OUT: the time from the call to the first
element of the first tensor, and the time in which every byte has been read once. The files are in the page cache.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch

torch.set_num_threads(1)


def make(folder: str, size: int) -> None:
    """Writes tensors of 32 MiB."""
    from safetensors.torch import save_file

    for half in range(2):
        weights = {f"layers.{half}.{i}.weight": torch.full((4 << 20,), i + half, dtype=torch.int64) for i in range(size >> 26)}
        save_file(weights, f"{folder}/model-{half}.safetensors")


def tensors(who: str, folder: str) -> Iterator[torch.Tensor]:
    """Yields the tensors of all files as torch tensors."""
    if who == "crossrank":
        import crossrank

        for tensor in crossrank.load(folder).values():
            yield tensor.torch()
        return
    from safetensors import safe_open

    for path in sorted(glob.glob(folder + "/*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                yield file.get_tensor(name)


def main() -> None:
    what, folder, last = sys.argv[1:]
    if what == "make":
        return make(folder, int(last))
    size = sum(os.path.getsize(path) for path in glob.glob(folder + "/*.safetensors"))
    list(tensors(what, folder))  # imports, and the page cache
    samples: dict[str, list[float]] = {"load, first tensor": [], "load, all bytes": []}
    for _ in range(3):
        start = time.perf_counter()
        first = next(tensors(what, folder))
        assert first[0] == 0
        samples["load, first tensor"].append(time.perf_counter() - start)
        start = time.perf_counter()
        total = sum(int(tensor.sum()) for tensor in tensors(what, folder))
        assert total > 0
        samples["load, all bytes"].append(time.perf_counter() - start)
    with open(last, "a", encoding="utf-8") as out:
        for variant, seconds in samples.items():
            row = {"what": "load", "who": what, "variant": variant, "ranks": 1, "bytes": size >> 20 << 20}
            out.write(json.dumps({**row, "median_us": sorted(seconds)[1] * 1e6}) + "\n")


if __name__ == "__main__":
    main()
