"""Llamas quantized and compressed by compressed-tensors, split in two like a tensor-parallel loader splits them.

A loader either splits the compressed tensors ("compressed, then sharded") and keeps the shape of the whole weight, or quantizes the
part of each rank with the scales of the whole ("sharded, then compressed"), so that each rank has the shape of its part.
"""
import os

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.model_compressors.model_compressor import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
import transformers

from comparison import Case

SCHEMES = ["W4A16", "W4A16_ASYM", "W8A16", "W8A8", "W4A8", "W2A16", "W3A16", "W6A16", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4", "NVFP4A16",
           "MXFP4", "MXFP4A16", "MXFP8", "MXFP8A16"]
ROW_PARALLEL = ("o_proj", "down_proj")


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, vocab_size=128,
        tie_word_embeddings=False, dtype="bfloat16")
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def blocks_of(weight, args):
    """Returns the weight, reshaped so that the values of one scale are in the last dimension."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        return weight.reshape(1, -1)
    if strategy == "channel":
        return weight.unsqueeze(1)
    if strategy in ("group", "tensor_group"):
        return weight.unflatten(1, (-1, args.group_size))
    rows, columns = args.block_structure
    return weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).transpose(1, 2).flatten(2)


def calibrate(module):
    """Sets the scales of a module's weight, and arbitrary ones for its input."""
    args = module.quantization_scheme.weights
    weight = module.weight.float()
    blocks = blocks_of(weight, args)
    whole = None
    if hasattr(module, "weight_global_scale"):
        whole = generate_gparam(weight.min(), weight.max())
        module.weight_global_scale.data.copy_(whole)
    scale, zero_point = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, whole)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(scale.dtype if scale.element_size() == 1 else torch.bfloat16)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero_point.reshape(module.weight_zero_point.shape))
    for name, value in (("input_scale", 0.5), ("input_global_scale", 32.0), ("input_zero_point", 0)):
        if hasattr(module, name):
            getattr(module, name).data.fill_(value)


def part(name, tensor, rank, world):
    """Returns a rank's part of a tensor of the layer `name`, or the whole tensor if it is replicated."""
    field = name.rsplit(".", 1)[1]
    if "proj" not in name or field in ("weight_shape", "weight_global_scale", "input_scale", "input_global_scale", "input_zero_point"):
        return tensor
    dim = 1 if any(layer in name for layer in ROW_PARALLEL) else 0
    if tensor.dim() <= dim or tensor.shape[dim] == 1 or tensor.numel() == 1:
        return tensor
    return tensor.chunk(world, dim)[rank]


def own(tensors):
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def make(work, world=2):
    cases, failed = [], {}
    for preset in SCHEMES:
        try:
            model = llama()
            apply_quantization_config(model, QuantizationConfig(config_groups={preset: ["Linear"]}, ignore=["lm_head"]), show_progress=False)
            layers = {name: module for name, module in model.named_modules() if getattr(module, "quantization_scheme", None)}
            for module in layers.values():
                calibrate(module)
            before = own(model.state_dict())
            schemes = {name: module.quantization_scheme for name, module in layers.items()}
            compressor = ModelCompressor.from_pretrained_model(model)
            compressor.compress_model(model)
            after = own(model.state_dict())
            save_file(after, f"{work}/{preset}.safetensors")

            ways = {"compressed, then sharded": [], "sharded, then compressed": []}
            for rank in range(world):
                ways["compressed, then sharded"].append({name: part(name, tensor, rank, world) for name, tensor in after.items()})
                mine = {}
                for name, scheme in schemes.items():
                    state = {field[len(name) + 1:]: part(field, tensor, rank, world) for field, tensor in before.items()
                             if field.startswith(name + ".")}
                    packer = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme).value)
                    mine.update({f"{name}.{field}": tensor for field, tensor in packer.compress(state, scheme).items()})
                rest = {name: tensor for name, tensor in before.items() if name.rsplit(".", 1)[0] not in schemes}
                ways["sharded, then compressed"].append({**mine, **rest})
            for way, ranks in ways.items():
                folder = f"{work}/{preset}, {way}"
                os.makedirs(folder)
                for rank, tensors in enumerate(ranks):
                    save_file(own(tensors), f"{folder}/model-rank{rank}.safetensors", metadata={"format": "pt"})
                model.config.save_pretrained(folder)
                compressor.update_config(folder)
                cases.append(Case("compressed-tensors", f"{preset}, {way}", folder, [f"{work}/{preset}.safetensors"]))
        except Exception as error:
            failed[preset] = f"{type(error).__name__}: {error}"
    return cases, failed
