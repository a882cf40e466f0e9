"""Ranks as processes of torch.distributed on one machine, over gloo."""
import datetime
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def _rank_main(rank, world, port, body, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world),
                      LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(minutes=5))
    body(rank, world, *arguments)
    dist.destroy_process_group()


def run_ranks(world, body, *arguments):
    """Runs `body(rank, world, *arguments)` in `world` processes; throws when one of them fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(_rank_main, (world, port, body, arguments), nprocs=world)


def failure_of_ranks(world, body, *arguments):
    """Returns why `run_ranks` failed, or an empty text."""
    try:
        run_ranks(world, body, *arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
