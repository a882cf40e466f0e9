"""Shards of transformers' own tensor parallelism on each rank, for every architecture with a plan."""
import os

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

import small_models
from comparison import Case, same_bits
from ranks import run_ranks

CHUNK = 12  # architectures per pair of processes; a crash loses only these


def parts_of(model):
    """Returns this rank's part of every tensor, each in separate memory."""
    parts = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        parts[name] = tensor.detach().clone().contiguous()
    return parts


def require_whole(model, memory):
    """Throws unless the ranks hold the model: transformers' own merge of their parts must give the tensors of one process."""
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if name in memory and not same_bits(whole.detach(), memory[name]):
            raise ValueError(f"transformers spreads {name} so that its ranks do not hold the model")


def options_for(model):
    """Returns the options for the command: no file says that a fused layer was split as one block."""
    plain = any(layer.endswith(("gate_up_proj", "qkv_proj")) and style.startswith("colwise") for layer, style in model.tp_plan.items())
    return ("--fused-layout", "plain") if plain else ()


def save_ranks(rank, world, work, architectures):
    for model_type, class_name in architectures.items():
        folder = f"{work}/{model_type}"
        try:
            model = getattr(transformers, class_name).from_pretrained(
                f"{folder}/whole", dtype=torch.bfloat16,
                distributed_config=transformers.distributed.DistributedConfig(tp_size=world))
            require_whole(model, load_file(f"{folder}/memory.safetensors"))
            save_file(parts_of(model), f"{folder}/shards/model-rank{rank}.safetensors", metadata={"format": "pt"})
        except Exception as error:
            with open(f"{folder}/failed", "w") as file:
                file.write(f"{type(error).__name__}: {error}")


def make(work, world=2, wanted=None):
    """Returns the cases, and the architectures for which transformers could not create a small model, with the reason."""
    cases, failed, made, options = [], {}, {}, {}
    for model_type, class_name in small_models.planned_architectures().items():
        if wanted and model_type not in wanted:
            continue
        folder = f"{work}/{model_type}"
        try:
            model = small_models.small_model(model_type, class_name)
            os.makedirs(f"{folder}/shards")
            model.save_pretrained(f"{folder}/whole")
            model.config.save_pretrained(f"{folder}/shards")
            # For some architectures names and layout on disk differ from those in memory; ranks hold the latter.
            whole = type(model).from_pretrained(f"{folder}/whole", dtype=torch.bfloat16)
            memory, original = parts_of(whole), parts_of(model)
            if any(not torch.equal(memory[name], original[name]) for name in memory):
                raise ValueError("transformers does not load what it saved")
            save_file(memory, f"{folder}/memory.safetensors")
            made[model_type] = class_name
            options[model_type] = options_for(model)
        except Exception as error:
            failed[model_type] = f"{type(error).__name__}: {error}"
    types = list(made)
    for first in range(0, len(types), CHUNK):
        chunk = {model_type: made[model_type] for model_type in types[first:first + CHUNK]}
        try:
            run_ranks(world, save_ranks, work, chunk)
        except Exception as error:
            for model_type in chunk:
                failed.setdefault(model_type, f"its ranks failed: {error}")
    for model_type in types:
        folder = f"{work}/{model_type}"
        if os.path.exists(f"{folder}/failed"):
            with open(f"{folder}/failed") as file:
                failed[model_type] = file.read()
        elif len([name for name in os.listdir(f"{folder}/shards") if name.endswith(".safetensors")]) == world:
            failed.pop(model_type, None)
            truths = [f"{folder}/memory.safetensors"]
            if os.path.exists(f"{folder}/whole/model.safetensors"):
                truths.append(f"{folder}/whole/model.safetensors")
            cases.append(Case("transformers", model_type, f"{folder}/shards", truths, options[model_type]))
    return cases, failed
