"""Models that accelerate trains on several ranks and saves: whole, in several files, and the state of a run."""
import os

from accelerate import Accelerator
import torch
import torch.distributed as dist
from safetensors.torch import save_file
import transformers

from comparison import Case
from ranks import failure_of_ranks
import small_models


def save_ranks(rank, world, work, dtype):
    accelerator = Accelerator(cpu=True)
    model = transformers.LlamaForCausalLM.from_pretrained(f"{work}/whole", dtype=getattr(torch, dtype))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    loss = model(torch.tensor([[1, 2, 3]])).logits.float().pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.save_state(f"{work}/state")
    accelerator.save_model(model, f"{work}/sharded", max_shard_size="100KB")
    truth = accelerator.get_state_dict(model)
    if rank == 0:
        save_file({key: value.detach().clone().contiguous() for key, value in truth.items()}, f"{work}/truth.safetensors")
    dist.barrier()


def make(work, worlds=(2, 3)):
    cases, failed = [], {}
    for world in worlds:
        for dtype in ("bfloat16", "float32"):
            folder, title = f"{work}/{world}-{dtype}", f"{dtype}, {world} ranks"
            os.makedirs(folder)
            model = small_models.small_model("llama", "LlamaForCausalLM")
            model.save_pretrained(f"{folder}/whole")
            if failure := failure_of_ranks(world, save_ranks, folder, dtype):
                failed[title] = failure
                continue
            for name in ("state", "sharded"):
                model.config.save_pretrained(f"{folder}/{name}")
                cases.append(Case("accelerate", f"{name}, {title}", f"{folder}/{name}", [f"{folder}/truth.safetensors"]))
    return cases, failed
