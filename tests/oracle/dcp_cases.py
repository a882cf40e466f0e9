"""Checkpoints of torch.distributed.checkpoint, saved by FSDP2, tensor parallelism and both."""
import os

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import transformers

import small_models
from comparison import Case
from ranks import failure_of_ranks

PLAN = {"self_attn.q_proj": ColwiseParallel, "self_attn.k_proj": ColwiseParallel, "self_attn.v_proj": ColwiseParallel,
        "self_attn.o_proj": RowwiseParallel, "mlp.gate_proj": ColwiseParallel, "mlp.up_proj": ColwiseParallel,
        "mlp.down_proj": RowwiseParallel}


def apply_tp(model, mesh):
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {name: style() for name, style in PLAN.items()})


def apply_fsdp(model, mesh):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def save_ranks(rank, world, work):
    def fresh():
        return transformers.LlamaForCausalLM.from_pretrained(f"{work}/whole", dtype=torch.bfloat16)

    flat = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    model = fresh()
    apply_fsdp(model, flat)
    weights = get_model_state_dict(model)
    dcp.save(weights, checkpoint_id=f"{work}/fsdp2")
    dcp.save({"model": weights}, checkpoint_id=f"{work}/fsdp2_model_key")
    dcp.save(weights, checkpoint_id=f"{work}/fsdp2_one_file_per_rank", planner=dcp.DefaultSavePlanner(),
             storage_writer=dcp.FileSystemWriter(f"{work}/fsdp2_one_file_per_rank", thread_count=2))
    dcp.async_save(weights, checkpoint_id=f"{work}/fsdp2_async").result()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.zero_grad(set_to_none=False)
    dcp.save({"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer), "step": 7},
             checkpoint_id=f"{work}/fsdp2_training")
    fqn = {name: 1 for name in weights}
    dcp.save(weights, storage_writer=HuggingFaceStorageWriter(f"{work}/hf_writer", fqn_to_index_mapping=fqn, save_distributed=True))

    tp = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    model = fresh()
    apply_tp(model, tp)
    dcp.save(get_model_state_dict(model), checkpoint_id=f"{work}/tp")

    if world == 4:
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = fresh()
        apply_tp(model, both["tp"])
        apply_fsdp(model, both["dp"])
        dcp.save(get_model_state_dict(model), checkpoint_id=f"{work}/fsdp2_and_tp")


def make(work, worlds=(2, 3, 4)):
    cases, failed = [], {}
    for world in worlds:
        folder = f"{work}/{world}"
        os.makedirs(folder)
        model = small_models.small_model("llama", "LlamaForCausalLM")
        model.save_pretrained(f"{folder}/whole")
        truth = f"{folder}/truth.safetensors"
        save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, truth)
        if failure := failure_of_ranks(world, save_ranks, folder):
            failed[f"{world} ranks"] = failure
        for name in sorted(os.listdir(folder)):
            if name in ("whole", "truth.safetensors") or not os.listdir(f"{folder}/{name}"):
                continue
            model.config.save_pretrained(f"{folder}/{name}")
            cases.append(Case("DCP", f"{name}, {world} ranks", f"{folder}/{name}", [truth]))
    return cases, failed
