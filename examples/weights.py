"""Gathers the slices of a weight on rank 0, saves them as one file and loads it. Usage: weights.py FOLDER"""

import sys
from pathlib import Path

import crossrank
import numpy

with crossrank.connect(timeout=60) as world:
    # Each rank holds four rows of the weight.
    mine = numpy.full((4, 8), world.rank, numpy.float32)

    total = mine.copy()
    world.all_reduce(total)
    assert total[0, 0] == sum(range(world.world_size))

    # On this rank's GPU, or on the CPU where there is none.
    on_device = crossrank.zeros((4, 8), "F32", device=crossrank.default_device())
    on_device.copy_from(mine)
    world.all_reduce(on_device)
    assert on_device.cpu().numpy()[0, 0] == total[0, 0]

    with crossrank.get_tensors_parallel(mine, group=world) as slices:
        if slices.is_receiver:
            weight = crossrank.concat(slices, dim=0)
            crossrank.save(Path(sys.argv[1]) / "model.safetensors", {"weight": weight})

    lengths = world.broadcast_object(list(weight.shape) if world.rank == 0 else None)
    loaded = crossrank.load(sys.argv[1])["weight"]
    assert list(loaded.shape) == lengths and loaded.readonly
    print(f"rows {lengths[0]}, last value {loaded.numpy()[-1, 0]:g}")

    try:
        world.all_reduce(loaded)
    except crossrank.UsageError:
        print("refused")  # the file must not be written
