"""DDP, FSDP2, DTensor and DCP on the backend "crossrank"."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402


def training(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

    torch.manual_seed(1)
    reference = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    inputs = torch.randn(size * 4, 6)
    reference(inputs).pow(2).mean().backward()
    expected = [parameter.grad.clone() for parameter in reference.parameters()]
    reference.zero_grad()

    parallel = torch.nn.parallel.DistributedDataParallel(reference)
    parallel(inputs[rank * 4 : rank * 4 + 4]).pow(2).mean().backward()
    for parameter, gradient in zip(reference.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    sharded = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded(inputs[rank * 4 : rank * 4 + 4]).pow(2).mean().backward()
    for parameter, gradient in zip(sharded.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad.full_tensor(), gradient, atol=1e-6)

    whole = torch.arange(24.0).reshape(8, 3)
    spread = distribute_tensor(whole, mesh, [Shard(0)])
    assert isinstance(spread, DTensor)
    assert torch.equal(spread.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    dist.destroy_process_group()


def compiled_training(rank: int, size: int) -> None:
    torch.manual_seed(1)
    reference = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    compiled = torch.compile(torch.nn.parallel.DistributedDataParallel(copy.deepcopy(reference)), backend="eager")
    for _ in range(3):
        inputs = torch.randn(size * 4, 6)
        for model, own in [(reference, inputs), (compiled, inputs[rank * 4 : rank * 4 + 4])]:
            model.zero_grad()
            model(own).pow(2).mean().backward()
        for parameter, expected in zip(compiled.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(parameter.grad, expected.grad, atol=1e-6)
    dist.destroy_process_group()


def grid(rank: int, size: int) -> None:
    import shutil
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))

    def make(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4))

    reference = make(1)
    inputs = torch.randn(size * 4, 6)
    reference(inputs).pow(2).mean().backward()
    model = make(1)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(inputs[rank * 4 : rank * 4 + 4]).pow(2).mean().backward()
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(parameter.grad.full_tensor(), expected.grad, atol=1e-6)

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    dcp.save(model.state_dict(), checkpoint_id=f"{folder[0]}/now")
    dcp.async_save(model.state_dict(), checkpoint_id=f"{folder[0]}/later").result()
    for name in ["now", "later"]:
        other = make(2)
        fully_shard(other, mesh=mesh)
        state = other.state_dict()
        dcp.load(state, checkpoint_id=f"{folder[0]}/{name}")
        other.load_state_dict(state)
        for parameter, expected in zip(other.parameters(), reference.parameters(), strict=True):
            assert torch.equal(parameter.full_tensor(), expected)

    row = mesh["shard"].get_group()
    members = dist.get_process_group_ranks(row)
    values = [None] * len(members)
    dist.all_gather_object(values, {"rank": rank}, group=row)
    assert [value["rank"] for value in values] == members
    text = [f"from {rank}"]
    dist.broadcast_object_list(text, src=members[0], group=row)
    assert text == [f"from {members[0]}"]
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


def uneven_inputs(rank: int, size: int) -> None:
    """Ranks with different numbers of batches, under DistributedDataParallel's `join`."""
    for unused in (False, True):
        for divide in (False, True):
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
            parallel = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
            optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
            with parallel.join(divide_by_initial_world_size=divide):
                for step in range(2 + rank):
                    optimizer.zero_grad()
                    parallel(torch.arange(12.0).reshape(3, 4) * (step + rank + 1) % 5).square().mean().backward()
                    optimizer.step()
            sums = [parameter.sum().item() for parameter in model.parameters()]
            gathered: list[list[float] | None] = [None] * size
            dist.all_gather_object(gathered, sums)
            assert gathered == [sums] * size
            print(unused, divide, sums)


def test_uneven_inputs_train_as_with_gloo() -> None:
    assert run_ranks(__file__, "uneven_inputs", 2) == run_ranks(__file__, "uneven_inputs", 2, backend="gloo")


def test_training_equals_one_process() -> None:
    run_ranks(__file__, "training", 2)


def test_a_compiled_module_trains_as_in_one_process() -> None:
    run_ranks(__file__, "compiled_training", 2)


def test_a_mesh_of_two_dimensions_trains_and_saves_checkpoints() -> None:
    run_ranks(__file__, "grid", 4)
