"""Distributed checkpoints of Megatron Core with tensor-parallel layers. Their format is not supported, so they are refused."""
import os

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from comparison import Case
from ranks import run_ranks

HIDDEN, FFN, VOCAB = 32, 96, 160


class Block(torch.nn.Module):
    """A column-parallel and a row-parallel layer, and a norm that all ranks have."""

    def __init__(self, config):
        super().__init__()
        init = torch.nn.init.normal_
        self.up = tensor_parallel.ColumnParallelLinear(HIDDEN, FFN, config=config, init_method=init)
        self.down = tensor_parallel.RowParallelLinear(
            FFN, HIDDEN, config=config, init_method=init, bias=True, input_is_parallel=True, skip_bias_add=False)
        self.norm = torch.nn.LayerNorm(HIDDEN)


def sharded(module, prefix):
    """Returns the sharded state of the layers, and of the norm as a replica."""
    groups = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    if hasattr(module, "sharded_state_dict"):
        return module.sharded_state_dict(prefix, metadata=groups)
    if not any(True for _ in module.children()):
        return make_sharded_tensors_for_checkpoint(
            module.state_dict(prefix="", keep_vars=True), prefix, tp_group=parallel_state.get_tensor_model_parallel_group(), **groups)
    state = {}
    for name, child in module.named_children():
        state.update(sharded(child, f"{prefix}{name}."))
    return state


def whole_tensor(tensor, world):
    """Puts the parameters of all ranks together."""
    parts = [None] * world
    dist.all_gather_object(parts, (tensor.data.detach().clone(), tensor.global_offset))
    whole = torch.zeros(tensor.global_shape, dtype=tensor.data.dtype)
    for data, offset in parts:
        whole[tuple(slice(begin, begin + length) for begin, length in zip(offset, data.shape, strict=True))] = data
    return whole


def save_ranks(rank, world, work):
    # Megatron asks for a device even where all tensors are on the CPU.
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: "cpu")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    config = ModelParallelConfig(tensor_model_parallel_size=world, use_cpu_initialization=True, params_dtype=torch.float32)
    torch.manual_seed(3)
    embedding = tensor_parallel.VocabParallelEmbedding(VOCAB, HIDDEN, init_method=torch.nn.init.normal_, config=config)
    block = Block(config)
    state = {**sharded(embedding, "embedding."), **sharded(block, "decoder.layers.0.")}
    if rank == 0:
        os.makedirs(f"{work}/saved")
    dist.barrier()
    truth = {tensor.key: whole_tensor(tensor, world) for tensor in state.values() if isinstance(tensor, dist_checkpointing.ShardedTensor)}
    dist_checkpointing.save(state, f"{work}/saved")
    if rank == 0:
        save_file(truth, f"{work}/truth.safetensors")
    dist.barrier()


def make(work, worlds=(1, 2, 4)):
    cases, failed = [], {}
    for world in worlds:
        folder, title = f"{work}/{world}", f"torch_dist, tensor-parallel over {world} ranks"
        os.makedirs(folder)
        try:
            run_ranks(world, save_ranks, folder)
        except Exception as error:
            failed[title] = f"{type(error).__name__}: {error}"
            continue
        cases.append(Case("Megatron Core", title, f"{folder}/saved", [f"{folder}/truth.safetensors"], refusal=True))
    return cases, failed
