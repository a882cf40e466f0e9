"""A case of the oracle: shards from a real program, the expected tensors, and the merge by crossrank."""
import dataclasses
import json
import os
import subprocess

import torch
from safetensors.torch import load_file


@dataclasses.dataclass
class Case:
    program: str  # the program that wrote the shards
    name: str
    shards: str  # a folder or file for `crossrank consolidate`
    truths: list  # safetensors files: possible names and layouts of the same model, one of which must result
    options: tuple = ()  # options of `crossrank consolidate`
    refusal: bool = False  # the program's files are incomplete, so an error is the correct result
    merged: bool = False  # `shards` is crossrank's result already
    verdict: tuple = ()  # verdict and reason, if the program has compared already


@dataclasses.dataclass
class Outcome:
    case: Case
    verdict: str  # equal, refused or wrong
    reason: str = ""


def load_checkpoint(folder):
    """Returns all tensors of a Hugging Face checkpoint."""
    tensors = {}
    for entry in sorted(os.listdir(folder)):
        if entry.endswith(".safetensors"):
            tensors.update(load_file(f"{folder}/{entry}"))
    return tensors


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def difference(made, truth):
    """Returns the difference between `made` and `truth`, or None. A tied tensor may be omitted: the tensor it is tied to has the same bits."""
    for name in sorted(made.keys() - truth.keys()):
        return f"{name} is not part of this model"
    for name, tensor in truth.items():
        if name not in made:
            if not any(same_bits(tensor, other) for other in made.values()):
                return f"{name} is missing"
        elif not same_bits(made[name], tensor):
            return f"{name}: {list(made[name].shape)} {made[name].dtype}, expected {list(tensor.shape)} {tensor.dtype}" + (
                ", other bits" if made[name].shape == tensor.shape else "")
    return ""


def run_case(crossrank, case, out):
    """Merges the shards of `case` into `out`, unless they are merged, and compares."""
    if case.verdict:
        return Outcome(case, *case.verdict)
    if case.merged:
        return compared(case, case.shards)
    command = [crossrank, "consolidate", case.shards, out, "--json", *case.options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        try:
            answer = json.loads(done.stdout)
            reason = answer.get("error", {}).get("message") or answer.get("message") or done.stdout
        except (ValueError, AttributeError):
            reason = done.stderr or done.stdout
        verdict = "refused" if done.returncode > 0 else "wrong"
        if done.returncode < 0:
            reason = f"ended by signal {-done.returncode}"
        return Outcome(case, verdict, " ".join(str(reason).split())[:400])
    return compared(case, out)


def compared(case, folder):
    made = load_checkpoint(folder)
    found = [difference(made, load_file(truth)) for truth in case.truths]
    if "" in found:
        return Outcome(case, "equal")
    return Outcome(case, "wrong", found[0])
