"""`share_memory`: the parameters of a module in memory that other ranks map."""

import crossrank
import pytest

torch = pytest.importorskip("torch")
import crossrank.torch  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

PROGRAM = """
import torch
import crossrank.torch
torch.manual_seed(world.rank)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512))
before = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
assert crossrank.torch.share_memory(model, world) is model
assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
weight = model[0].weight
"""


def test_share_memory_lets_a_receiver_map_the_pages_of_the_sender(ranks):
    ranks(
        2,
        PROGRAM
        + """
for part in (weight, weight[128:256]):
    with crossrank.get_tensors_parallel(part, group=world) as received:
        if world.rank == 1:
            part.data[0, 0] = 7.0  # the receiver sees it, so nothing was copied
        world.barrier()
        if world.rank == 0:
            theirs = received[1].torch()
            assert theirs[0, 0] == 7.0
            theirs[0, 1] = 9.0
        world.barrier()
        assert part[0, 1] != 9.0
    world.barrier()
    part.data[0, 0] = 1.0
""",
    )


def drop_in(rank: int, size: int) -> None:
    import torch.distributed as dist
    from crossrank.compat.modelopt import get_tensors_parallel

    pair = dist.new_group([0, 1])
    model = torch.nn.Linear(512, 512)
    weight = crossrank.torch.share_memory(model, pair).weight if rank < 2 else model.weight
    if rank < 2:
        with get_tensors_parallel(weight, [0, 1], pair) as received:
            if rank == 1:
                weight.data[0, 0] = 7.0
            dist.barrier(pair)
            assert rank == 1 or received[1][0, 0] == 7.0
    crossrank.torch.share_memory(model)
    with get_tensors_parallel(model.bias, list(range(size))) as received:
        assert len(received) == (size if rank == 0 else 0)


def test_share_memory_serves_the_drop_in_for_modelopt():
    run_ranks(__file__, "drop_in", 3)


def test_share_memory_leaves_parameters_to_their_optimizer(ranks):
    ranks(
        2,
        PROGRAM
        + """
assert weight is optimizer.param_groups[0]["params"][0]
model(torch.ones(4, 512)).sum().backward()
optimizer.step()
assert torch.equal(model[1].bias.data, before["1.bias"] - 4.0)
with crossrank.get_tensors_parallel(model[1].bias, group=world) as received:
    for theirs in received:
        assert torch.equal(theirs.torch(), model[1].bias)
""",
    )


def test_share_memory_keeps_shapes_and_what_shares_memory():
    with crossrank.connect() as world:
        model = torch.nn.ModuleList([torch.nn.Linear(8, 4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)])
        model[1].weight.data = model[0].weight.data.T
        model[2].weight.data = model[0].weight.data
        model.register_buffer("rows", model[0].weight.data[1:3])
        model.register_buffer("nothing", torch.empty(0, 3, dtype=torch.bfloat16))
        model.register_buffer("scalar", torch.tensor(3.0))
        model.register_buffer("complex", torch.ones(3, dtype=torch.complex128))
        values = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
        crossrank.torch.share_memory(model, world)
        for tensor, value in zip((*model.parameters(), *model.buffers()), values, strict=True):
            assert tensor.shape == value.shape and tensor.dtype == value.dtype and torch.equal(tensor, value)
        model[2].weight.data[1, 0] = 5.0
        assert model[0].weight[1, 0] == model[1].weight[0, 1] == model.rows[0, 0] == 5.0


def test_share_memory_keeps_its_memory_as_long_as_the_module():
    model = torch.nn.Linear(256, 256)
    value = model.weight.clone()
    with crossrank.connect() as world:
        crossrank.torch.share_memory(model, world)
    assert torch.equal(model.weight, value)


def test_share_memory_moves_to_the_cpu_whatever_the_default_device():
    model = torch.nn.Linear(8, 4)
    value = model.weight.clone()
    with crossrank.connect() as world, torch.device("meta"):
        crossrank.torch.share_memory(model, world)
    assert torch.equal(model.weight, value)


def test_share_memory_refuses_what_cannot_be_shared_and_changes_nothing():
    with crossrank.connect() as world:
        for bad in (torch.empty(4, device="meta"), torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()):
            model = torch.nn.Linear(4, 4)
            model.register_buffer("bad", bad)
            before = model.weight.data_ptr()
            with pytest.raises(crossrank.UsageError, match="bad"):
                crossrank.torch.share_memory(model, world)
            assert model.weight.data_ptr() == before
