"""Checkpoints of DeepSpeed: ZeRO stages 0 to 3 and mixtures of experts."""
import os

import torch
from safetensors.torch import save_file
import transformers

import small_models
from comparison import Case
from ranks import run_ranks


def config_for(stage, dtype):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    return config


def save_ranks(rank, world, work, stage, dtype):
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    model = transformers.LlamaForCausalLM.from_pretrained(f"{work}/whole", dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config_for(stage, dtype))
    # Run one step, so that the master weights differ from the loaded ones.
    loss = engine(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss
    engine.backward(loss)
    engine.step()
    engine.save_checkpoint(f"{work}/saved", tag="global_step1")


def true_weights(saved, stage, dtype):
    """Returns the merge of the checkpoint by DeepSpeed's own tools."""
    if stage == 0:
        state = torch.load(f"{saved}/global_step1/mp_rank_00_model_states.pt", weights_only=False, map_location="cpu")
        return state["module"]
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(saved)


def make(work, worlds=(2, 3)):
    cases, failed = [], {}
    for world in worlds:
        for stage in (0, 1, 2, 3):
            for dtype in ("bf16", "fp32"):
                name = f"ZeRO-{stage} {dtype}, {world} ranks"
                folder = f"{work}/{world}-{stage}-{dtype}"
                os.makedirs(folder)
                try:
                    model = small_models.small_model("llama", "LlamaForCausalLM")
                    model.save_pretrained(f"{folder}/whole")
                    run_ranks(world, save_ranks, folder, stage, dtype)
                    truth = {key: value.detach().clone().contiguous() for key, value in true_weights(f"{folder}/saved", stage, dtype).items()}
                    save_file(truth, f"{folder}/truth.safetensors")
                    model.config.save_pretrained(f"{folder}/saved")
                    cases.append(Case("DeepSpeed", name, f"{folder}/saved", [f"{folder}/truth.safetensors"]))
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {error}"
    return cases, failed
