"""Writes checkpoints with torch and reads them back, as the reference of the tests beside this file.

make OUT         writes, for each layout, a folder and NAME.safetensors with the whole model
load FILE OUT    reads an archive by torch.load(weights_only=True) and writes OUT as safetensors
"""
import argparse
import collections
import os
import random
import sys

import numpy
import torch
from safetensors.torch import save_file

torch.manual_seed(0)
HIDDEN, FFN, VOCABULARY, LAYERS = 16, 24, 32, 2


def tensor(*shape):
    return torch.randn(*shape).to(torch.bfloat16)


def megatron_model():
    model = {"embedding.word_embeddings.weight": tensor(VOCABULARY, HIDDEN)}
    for i in range(LAYERS):
        layer = f"decoder.layers.{i}."
        model[layer + "self_attention.linear_qkv.layer_norm_weight"] = tensor(HIDDEN)
        model[layer + "self_attention.linear_qkv.weight"] = tensor(3 * HIDDEN, HIDDEN)
        model[layer + "self_attention.linear_proj.weight"] = tensor(HIDDEN, HIDDEN)
        model[layer + "mlp.linear_fc1.weight"] = tensor(2 * FFN, HIDDEN)
        model[layer + "mlp.linear_fc2.weight"] = tensor(HIDDEN, FFN)
    model["decoder.final_layernorm.weight"] = tensor(HIDDEN)
    model["output_layer.weight"] = tensor(VOCABULARY, HIDDEN)
    return model


def part(name, whole, rank, ranks):
    """Returns the part of a weight that a tensor-parallel rank has, in its own memory."""
    if "norm" in name:
        return whole.clone()
    if "linear_fc1" in name:
        gate, up = whole.chunk(2)
        return torch.cat([gate.chunk(ranks)[rank], up.chunk(ranks)[rank]])
    dim = 1 if "linear_proj" in name or "linear_fc2" in name else 0
    return whole.chunk(ranks, dim)[rank].clone()


def megatron(out):
    model = megatron_model()
    arguments = argparse.Namespace(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2, expert_model_parallel_size=1, hidden_size=HIDDEN,
        num_attention_heads=4, num_query_groups=1, group_query_attention=False, kv_channels=HIDDEN // 4,
        ffn_hidden_size=FFN, num_layers=LAYERS, swiglu=True, vocab_size=None, params_dtype=torch.bfloat16,
        lr=1e-4, betas=(0.9, 0.95), data_path=["a", "b"])
    for pp in range(2):
        for tp in range(2):
            mine = collections.OrderedDict()
            for name, whole in model.items():
                number = name.split(".")[2] if ".layers." in name else ("0" if name.startswith("embedding") else "1")
                if int(number) == pp:
                    mine[name.replace(f"layers.{number}", "layers.0")] = part(name, whole, tp, 2)
            mine["decoder.layers.0.self_attention._extra_state"] = torch.zeros(3, dtype=torch.uint8)
            folder = f"{out}/megatron/iter_0000010/mp_rank_0{tp}_00{pp}"
            os.makedirs(folder)
            torch.save({
                "args": arguments, "checkpoint_version": 3.0, "iteration": 10, "model": mine,
                "optimizer": {"optimizer": {"state": {0: {"exp_avg": torch.ones(4)}}, "param_groups": [{"lr": 0.1}]}},
                "rng_state": [{"random_rng_state": random.getstate(), "np_rng_state": numpy.random.get_state(),
                               "torch_rng_state": torch.get_rng_state()}],
            }, f"{folder}/model_optim_rng.pt")
    with open(f"{out}/megatron/latest_checkpointed_iteration.txt", "w") as file:
        file.write("10")
    save_file(model, f"{out}/megatron.safetensors")


def zero(out, stage, ranks=3):
    shapes = [("model.embed_tokens.weight", (7, 3)), ("model.norm.weight", (3,)), ("lm_head.weight", (7, 3))]
    groups = [shapes[:2], shapes[2:]]
    model = {name: torch.randn(shape) for name, shape in shapes}
    parts = [[] for _ in range(ranks)]
    for group in groups:
        flats = [[] for _ in range(ranks)]
        whole = torch.cat([model[name].flatten() for name, _ in group])
        if stage == 3:
            for name, _ in group:
                flat = model[name].flatten()
                padded = torch.cat([flat, torch.zeros(-len(flat) % ranks)])
                for rank, piece in enumerate(padded.chunk(ranks)):
                    flats[rank].append(piece)
        else:
            padded = torch.cat([whole, torch.zeros(-len(whole) % (2 * ranks))])
            for rank, piece in enumerate(padded.chunk(ranks)):
                flats[rank].append(piece)
        for rank in range(ranks):
            parts[rank].append(torch.cat(flats[rank]))
    folder = f"{out}/zero{stage}/global_step5"
    os.makedirs(folder)
    buffer = torch.arange(3.0)
    states = {
        "module": collections.OrderedDict(inv_freq=buffer), "buffer_names": ["inv_freq"],
        "param_shapes": [collections.OrderedDict((name, torch.Size(shape)) for name, shape in group) for group in groups],
        "frozen_param_shapes": None, "frozen_param_fragments": None, "shared_params": {}, "ds_version": "0.14.0",
        "ds_config": {"train_batch_size": 3, "bf16": {"enabled": True}}, "global_steps": 5,
    }
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    for rank in range(ranks):
        torch.save({"optimizer_state_dict": {"zero_stage": stage, "partition_count": [ranks] * len(groups),
                                             key: parts[rank], "base_optimizer_state": {"step": torch.tensor(5)}}},
                   f"{folder}/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3:
            torch.save(states, f"{folder}/zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage != 3:
        torch.save(states, f"{folder}/mp_rank_00_model_states.pt")
    with open(f"{out}/zero{stage}/latest", "w") as file:
        file.write("global_step5")
    save_file({**model, "inv_freq": buffer}, f"{out}/zero{stage}.safetensors")


def consolidated(out):
    model = {"tok_embeddings.weight": tensor(VOCABULARY, HIDDEN), "norm.weight": tensor(HIDDEN),
             "output.weight": tensor(VOCABULARY, HIDDEN)}
    for name, shape in (("wq", (16, 16)), ("wk", (8, 16)), ("wv", (8, 16)), ("wo", (16, 16))):
        model[f"layers.0.attention.{name}.weight"] = tensor(*shape)
    for name, shape in (("w1", (FFN, 16)), ("w2", (16, FFN)), ("w3", (FFN, 16))):
        model[f"layers.0.feed_forward.{name}.weight"] = tensor(*shape)
    os.makedirs(f"{out}/consolidated")
    for rank in range(2):
        mine = {}
        for name, whole in model.items():
            dim = 1 if name.endswith(("wo.weight", "w2.weight")) else 0
            mine[name] = whole if name == "norm.weight" else whole.chunk(2, dim)[rank].clone()
        torch.save(mine, f"{out}/consolidated/consolidated.0{rank}.pth")
    save_file(model, f"{out}/consolidated.safetensors")


def main():
    if sys.argv[1] == "load":
        weights = torch.load(sys.argv[2], weights_only=True)
        save_file({name: weight.clone() for name, weight in weights.items()}, sys.argv[3])
        return
    out = sys.argv[2]
    megatron(out)
    for stage in (2, 3):
        zero(out, stage)
    consolidated(out)


main()
