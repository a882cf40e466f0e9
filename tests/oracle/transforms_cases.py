"""Training under PyTorch's DDP and `fully_shard` and under ours: the same model, data and settings must give the same parameters.

The model has odd sizes, parts of which some ranks have no rows, a scalar, and tied, frozen and unused parameters. Parameters,
optimizer state, losses and norms are compared after 20 steps.
"""
import json
import os
import subprocess

import torch
from safetensors.torch import load_file, save_file

from comparison import Case
from ranks import run_ranks
import tiny_torch

STEPS, ROWS, WIDTHS = 20, 24, [3, 5, 5, 5, 1]
ADAMW = {"name": "AdamW", "lr": 0.02, "weight_decay": 0.05}
SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}

# The largest distance of two parameters, all of which are below 2. Sums are taken in another order, so each step differs
# in the last bits, and later steps add to that. Values in BF16 between 1 and 2 are 2^-7 apart, and a few round to another one.
ROUNDING = {"float64": 1e-14, "float32": 2e-6, "bfloat16": 2.0**-6}
MIXED_ROUNDING = 1e-3  # a sum in another order may round to the next number of BF16
# PyTorch also keeps the optimizer's state of BF16 parameters in BF16. With the option `float_state` it trains a float32
# copy instead, which is rounded after each step. That is what ours does.
BF16_STATE_ROUNDING = 2.0**-4

DDP_SETTINGS = {
    "default": {},
    "copied_gradients": {"config": {"gradient_as_bucket_view": False}, "optimizer": SGD},
    "static_graph": {"config": {"static_graph": True}},
    "unused": {"config": {"find_unused_parameters": True}, "unused": True},
    "unused_copied": {"config": {"find_unused_parameters": True, "gradient_as_bucket_view": False}, "unused": True},
    "unused_on_one_rank": {"config": {"find_unused_parameters": True}, "unused": True, "skips_on_rank": 1},
    "accumulation": {"microbatches": 2},
    "accumulation_copied": {"config": {"gradient_as_bucket_view": False}, "microbatches": 4, "optimizer": SGD},
    "clipping": {"max_norm": 0.3},
    "bf16_hook": {"bf16_hook": True, "rounding": 5e-3},  # ranks and buckets differ in which sums they round first
    "all_float64": {"dtype": "float64", "config": {"find_unused_parameters": True}, "unused": True, "microbatches": 2,
                    "max_norm": 0.3},
    "bfloat16": {"dtype": "bfloat16", "float_state": True},
    "bfloat16_sgd": {"dtype": "bfloat16", "float_state": True, "optimizer": SGD, "microbatches": 2},
    "bfloat16_state": {"dtype": "bfloat16", "rounding": BF16_STATE_ROUNDING},
}

MIXED = {"param_dtype": "bfloat16"}
MIXED_FLOAT = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
SHARD_SETTINGS = {
    "default": {"unused": True},
    "reshard": {"config": {"reshard_after_forward": True}, "unused": True},
    "reshard_sgd": {"config": {"reshard_after_forward": True}, "optimizer": SGD},
    "flattened_offload": {"config": {"use_hybrid_sharding": False, "offload": {"cpu_offload": True, "pin_memory": False}}},
    "accumulation": {"config": {"reshard_after_forward": True}, "microbatches": 2, "unused": True},
    "accumulation_synced": {"config": {"sync_grad_accum": True}, "microbatches": 2},
    "clipping": {"config": {"reshard_after_forward": True}, "max_norm": 0.3, "unused": True},
    "all_float64": {"dtype": "float64", "config": {"reshard_after_forward": True}, "unused": True, "microbatches": 2,
                    "max_norm": 0.3},
    "bfloat16": {"dtype": "bfloat16", "float_state": True, "config": {"reshard_after_forward": True}},
    "bfloat16_state": {"dtype": "bfloat16", "config": {"reshard_after_forward": True}, "rounding": BF16_STATE_ROUNDING},
    "mixed": {"config": {"mixed_precision": MIXED, "reshard_after_forward": True}, "rounding": MIXED_ROUNDING},
    "mixed_reduced_as_float": {"config": {"mixed_precision": MIXED_FLOAT}, "optimizer": SGD},
    # PyTorch's autograd adds the gradients of a tied parameter in another dtype then, so there is none here.
    "mixed_accumulation": {"config": {"mixed_precision": MIXED_FLOAT}, "microbatches": 4, "optimizer": SGD, "tied": False},
    "mixed_outputs": {"config": {"mixed_precision": {**MIXED_FLOAT, "output_dtype": "float32", "cast_forward_inputs": False},
                                 "reshard_after_forward": True}, "optimizer": SGD, "max_norm": 0.3},
    "reduced_as_float64": {"config": {"mixed_precision": {"reduce_dtype": "float64"}}},
}
# A number of ranks in `reshard_after_forward` divides the ranks, and PyTorch takes neither 1 nor all of them.
FOUR_RANKS = {
    "reshard_to_2": {"config": {"reshard_after_forward": 2}, "unused": True},
    "reshard_to_2_mixed": {"config": {"reshard_after_forward": 2, "mixed_precision": MIXED_FLOAT}, "optimizer": SGD},
    "hybrid": {"sharding": 2, "config": {"reshard_after_forward": True}, "max_norm": 0.3},
    "hybrid_float64": {"sharding": 2, "dtype": "float64", "microbatches": 2, "unused": True},
}


def settings():
    for ranks in (2, 3):
        for name, setting in DDP_SETTINGS.items():
            yield f"ddp-{name}-{ranks}", ranks, "ddp", setting
        for name, setting in SHARD_SETTINGS.items():
            yield f"fully_shard-{name}-{ranks}", ranks, "fully_shard", setting
    for name, setting in FOUR_RANKS.items():
        yield f"fully_shard-{name}-4", 4, "fully_shard", setting


def make_case(work, name, ranks, transform, setting):
    """Writes the initial values and returns the description that both trainers read."""
    folder = f"{work}/{name}"
    model = {"widths": WIDTHS, "dtype": setting.get("dtype", "float32"), "unused": setting.get("unused", False),
             "tied": setting.get("tied", True)}
    for part in ("initial", "truth"):
        os.makedirs(f"{folder}/{part}")
    torch.manual_seed(17)
    initial = {key: value.detach().clone() for key, value in tiny_torch.TinyTorch(model, ()).named_parameters()}
    save_file(initial, f"{folder}/initial/model.safetensors")
    sharding = setting.get("sharding", ranks if transform == "fully_shard" else 1)
    return {"name": name, "ranks": ranks, "sharding": sharding, "transform": transform, "config": setting.get("config", {}),
            "model": model, "optimizer": setting.get("optimizer", ADAMW), "microbatches": setting.get("microbatches", 1),
            "max_norm": setting.get("max_norm", 0.0), "bf16_hook": setting.get("bf16_hook", False),
            "skips_on_rank": setting.get("skips_on_rank", -1), "float_state": setting.get("float_state", False), "initial": f"{folder}/initial", "truth": f"{folder}/truth",
            "data": f"{work}/data.safetensors", "out": f"{folder}/out",
            "rounding": setting.get("rounding", ROUNDING[model["dtype"]])}


def write_data(work):
    torch.manual_seed(18)
    inputs = torch.randn(STEPS, ROWS, WIDTHS[0], dtype=torch.float64)
    targets = torch.tanh(inputs.sum(dim=2, keepdim=True)).expand(STEPS, ROWS, WIDTHS[-1]).contiguous()
    save_file({"inputs": inputs, "targets": targets}, f"{work}/data.safetensors")


def largest_distance(made, truth):
    """Returns the largest distance of two values, and where it is. A tied tensor may have either name."""
    largest, where = 0.0, ""
    for name, expected in truth.items():
        if name not in made:
            return float("inf"), f"{name} is missing"
        got = made[name]
        if got.numel() != expected.numel():
            return float("inf"), f"{name} has the shape {list(got.shape)}, expected {list(expected.shape)}"
        distance = (got.reshape(-1).double() - expected.reshape(-1).double()).abs().max().item()
        if not distance <= largest:
            largest, where = distance, name
    extra = sorted(made.keys() - truth.keys())
    return (float("inf"), f"{extra[0]} is not part of this model") if extra else (largest, where)


def compare(case):
    """Returns whether the results are equal, and how far they are apart."""
    with open(f"{case['truth']}/log.json", encoding="utf-8") as file:
        log = json.load(file)
    with open(f"{case['out']}/training_state.json", encoding="utf-8") as file:
        own_log = json.load(file)["training_state"]
    texts, equal = [], True
    parts = [("parameters", "model", 1.0)]
    if case["optimizer"]["name"] != "SGD" or case["optimizer"]["momentum"]:
        parts.append(("optimizer state", "optimizer", 4.0))  # sums of gradients, which are larger than the parameters
    for what, file, factor in parts:
        distance, where = largest_distance(load_file(f"{case['out']}/{file}.safetensors"), load_file(f"{case['truth']}/{file}.safetensors"))
        equal = equal and distance <= case["rounding"] * factor
        texts.append(f"{what} {distance:.1e} ({where})")
    for what in ("losses", "norms"):
        pairs = list(zip(own_log[what], log[what], strict=True))
        distance = max((abs(a - b) / max(1.0, abs(b)) for a, b in pairs), default=0.0)
        equal = equal and distance <= case["rounding"] * 4
        texts.append(f"{what} {distance:.1e}")
    return equal, f"at most {case['rounding']:.1e}: " + ", ".join(texts)


def make(work, wanted=None):
    """Returns compared cases, and those that could not be trained with the reason."""
    trainer = os.environ.get("CROSSRANK_ORACLE_TRAINER")
    if not trainer:
        raise ImportError("CROSSRANK_ORACLE_TRAINER does not name the program oracle_trainer")
    write_data(work)
    described = [make_case(work, *one) for one in settings() if not wanted or one[0] in wanted]
    for ranks in sorted({case["ranks"] for case in described}):
        run_ranks(ranks, tiny_torch.train_all, [case for case in described if case["ranks"] == ranks])
    with open(f"{work}/cases.json", "w", encoding="utf-8") as file:
        json.dump(described, file)
    done = subprocess.run([trainer, f"{work}/cases.json"], capture_output=True, text=True, timeout=900)
    failures = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    if done.returncode != 0 and not failures:
        failures = {case["name"]: done.stderr or f"exit code {done.returncode}" for case in described}
    cases = []
    for case in described:
        equal, text = (False, failures[case["name"]]) if case["name"] in failures else compare(case)
        cases.append(Case("transforms", case["name"], "", [], verdict=("equal" if equal else "wrong", text)))
    return cases, {}
