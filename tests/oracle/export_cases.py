"""Checkpoints that `crossrank.torch` exports from the memory of ranks: models under FSDP2, tensor parallelism and HSDP, and GPT
models of Megatron Core."""
import os

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
import transformers

from comparison import Case
from dcp_cases import apply_fsdp, apply_tp
from ranks import failure_of_ranks
import small_models


def fresh(work):
    return transformers.LlamaForCausalLM.from_pretrained(f"{work}/whole", dtype=torch.bfloat16)


def train_one_step(model):
    """Changes the parameters, so that they differ from the saved ones."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2, 3]])).logits.float().sum().backward()
    optimizer.step()


def fsdp2(work, world):
    model = fresh(work)
    apply_fsdp(model, init_device_mesh("cpu", (world,)))
    train_one_step(model)
    return model


def fsdp2_mixed(work, world):
    """Shards in float32 that are computed with in bfloat16, along a dimension that FSDP2 is told."""
    model = fresh(work).float()
    mesh, policy = init_device_mesh("cpu", (world,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    last = lambda parameter: Shard(parameter.dim() - 1) if parameter.shape[-1] % world == 0 else Shard(0)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, shard_placement_fn=last)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def tensor_parallel(work, world):
    model = fresh(work)
    apply_tp(model, init_device_mesh("cpu", (world,)))
    return model


def hybrid(work, world):
    model = fresh(work)
    apply_fsdp(model, init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))
    train_one_step(model)
    return model


def fsdp2_and_tp(work, world):
    model, mesh = fresh(work), init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    apply_tp(model, mesh["tp"])
    apply_fsdp(model, mesh["dp"])
    return model


def spread_tensors(work, world):
    """A state dict of DTensors with each kind of placement, and lengths that the ranks do not divide."""
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(7)
    whole = torch.randn(7, 5)
    state = {f"shard{dim}": distribute_tensor(whole, mesh, [Shard(dim)]) for dim in (0, 1)}
    state["replicate"] = distribute_tensor(whole, mesh, [Replicate()])
    state["few_rows"] = distribute_tensor(whole[:1].contiguous(), mesh, [Shard(0)])
    state["sum"] = DTensor.from_local(torch.full((3,), float(dist.get_rank() + 1)), mesh, [Partial()], run_check=False)
    return state


MODELS = {
    "fsdp2": (fsdp2, (2, 3, 4)),
    "fsdp2_mixed": (fsdp2_mixed, (2, 4)),
    "tensor_parallel": (tensor_parallel, (2,)),
    "hybrid": (hybrid, (4,)),
    "fsdp2_and_tp": (fsdp2_and_tp, (4,)),
    "spread_tensors": (spread_tensors, (2, 3, 4)),
}


def export_ranks(rank, world, work, name):
    import crossrank.torch

    model = MODELS[name][0](work, world)
    crossrank.torch.export_checkpoint(model, f"{work}/made", config={} if isinstance(model, dict) else None, max_shard_bytes=100_000)
    gathered = crossrank.torch.gather_full_state_dict(model, dst=world - 1)
    if isinstance(model, dict):
        truth = {key: value.full_tensor() for key, value in model.items()}
    else:
        truth = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        save_file({key: value.detach().clone().contiguous() for key, value in truth.items()}, f"{work}/truth.safetensors")
    dist.barrier()
    if rank == world - 1:
        os.makedirs(f"{work}/gathered")
        save_file({key: value.contiguous() for key, value in gathered.items()}, f"{work}/gathered/model.safetensors")
    dist.barrier()


def make(work):
    import crossrank.torch  # noqa: F401  the reason for a skip where the package is not installed

    cases, failed = [], {}
    for name, (_, worlds) in MODELS.items():
        for world in worlds:
            folder, title = f"{work}/{name}-{world}", f"{name}, {world} ranks"
            os.makedirs(folder)
            small_models.small_model("llama", "LlamaForCausalLM").save_pretrained(f"{folder}/whole")
            if failure := failure_of_ranks(world, export_ranks, folder, name):
                failed[title] = failure
                continue
            for result in ("made", "gathered"):
                cases.append(Case("export", f"{title}, {result}", f"{folder}/{result}", [f"{folder}/truth.safetensors"], merged=True))
    try:
        import megatron_cases
    except ImportError as error:
        failed["GPT models of Megatron Core"] = f"skipped: {error}"
        return cases, failed
    more, not_made = megatron_cases.make_exports(work)
    return cases + more, {**failed, **not_made}
