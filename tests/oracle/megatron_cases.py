"""Distributed checkpoints of Megatron Core (torch_dist): layers of its tensor parallelism, and GPT models.

The truth of a GPT model is Megatron's own load into a model that is not parallel, under the names of its modules.
`make_exports` also exports the parts of GPT models from the memory of their ranks."""
import argparse
import dataclasses
import json
import os
import re

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.moe import grouped_gemm_util
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from comparison import Case
from ranks import failure_of_ranks, run_ranks

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


def without_gpu():
    """Megatron asks for a device even where all tensors are on the CPU."""
    torch.cuda.synchronize, torch.cuda.current_device = (lambda *_: None), (lambda: "cpu")


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


def save_layers(rank, world, work):
    without_gpu()
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


@dataclasses.dataclass
class Model:
    name: str
    tp: int = 1
    pp: int = 1
    ep: int = 1
    experts: int = 0
    grouped: bool = False  # the experts of a rank are one tensor
    gated: bool = True
    bias: bool = False
    tied: bool = False
    dtype: torch.dtype = torch.float32
    training: bool = False  # saves an optimizer and random states too
    prefix: str = ""
    metadata: dict = dataclasses.field(default_factory=dict)  # of Megatron's sharded state
    hugging_face: bool = False  # a rule file gives the names of Hugging Face's Llama
    latest: bool = False  # crossrank gets the folder with the number of the latest iteration

    @property
    def world(self):
        return self.pp * max(self.tp, self.ep)


MODELS = [
    Model("1 rank"),
    Model("1 rank, BF16", dtype=torch.bfloat16),
    Model("TP 2", tp=2, latest=True),
    Model("TP 2, biases, no gate", tp=2, gated=False, bias=True),
    Model("TP 2, tied embedding", tp=2, tied=True),
    Model("PP 2", pp=2, latest=True),
    Model("TP 2, PP 2", tp=2, pp=2),
    Model("TP 2, PP 2, optimizer and random states", tp=2, pp=2, training=True, latest=True),
    Model("TP 2, a tensor for each layer", tp=2, metadata={"non_homogeneous_layers": True}),
    Model("TP 2, a tensor for each half of a gated layer", tp=2, metadata={"singleton_local_shards": True}),
    Model("TP 2, inside a module", tp=2, prefix="module."),
    Model("1 rank, as a Llama of Hugging Face", hugging_face=True),
    Model("TP 2, PP 2, as a Llama of Hugging Face", tp=2, pp=2, hugging_face=True, latest=True),
    Model("4 experts", experts=4),
    Model("4 experts, TP 2", experts=4, tp=2),
    Model("4 experts, PP 2", experts=4, pp=2),
    Model("4 experts, EP 2", experts=4, ep=2, latest=True),
    Model("4 experts, EP 2, PP 2", experts=4, ep=2, pp=2),
    Model("4 experts, EP 2, optimizer and random states", experts=4, ep=2, training=True),
    Model("4 experts, EP 2, a tensor for each expert", experts=4, ep=2, metadata={"singleton_local_shards": True}),
    Model("4 experts, EP 2, grouped", experts=4, ep=2, grouped=True),
    Model("4 experts, TP 2, grouped", experts=4, tp=2, grouped=True),
    Model("4 experts, EP 2, grouped, a tensor for each expert", experts=4, ep=2, grouped=True,
          metadata={"singleton_local_shards": True}),
]


def gpt(model, tp=1, pp=1, ep=1, grouped=False):
    """Returns this rank's part of a GPT model."""
    grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None  # only its parameters are needed
    parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
    activation = torch.nn.functional.silu if model.gated else torch.nn.functional.gelu
    config = TransformerConfig(
        num_layers=4, hidden_size=HIDDEN, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48, gated_linear_unit=model.gated,
        activation_func=activation, add_bias_linear=model.bias, num_moe_experts=model.experts or None,
        moe_ffn_hidden_size=24 if model.experts else None, moe_grouped_gemm=grouped, normalization="RMSNorm", params_dtype=model.dtype,
        pipeline_dtype=model.dtype, bf16=model.dtype == torch.bfloat16, use_cpu_initialization=True, tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp, expert_model_parallel_size=ep)
    spec = get_gpt_layer_local_spec(num_experts=model.experts or None, moe_grouped_gemm=grouped, normalization="RMSNorm")
    part = GPTModel(config, spec, vocab_size=VOCAB, max_sequence_length=16, position_embedding_type="rope",
                    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
                    share_embeddings_and_output_weights=model.tied)
    part.to(model.dtype)
    return part


def metadata_of(model):
    return {**model.metadata, "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}


def optimizer_state(part, state):
    """Returns the sharded state of an optimizer after a step with random gradients."""
    optimizer = torch.optim.AdamW([parameter for parameter in part.parameters() if parameter.requires_grad], lr=1e-3)
    for parameter in part.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    saved = optimizer.state_dict()
    of_parameters = get_param_id_to_sharded_param_map(state, (p for group in optimizer.param_groups for p in group["params"]))
    optim_state_to_sharding_state(saved, of_parameters, exclude_keys="step")
    return saved


def save_model(rank, world, model, work):
    folder = f"{folder_of(work, model)}/iter_0000003"
    torch.manual_seed(5 + rank)
    part = gpt(model, model.tp, model.pp, model.ep, model.grouped)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn_like(parameter))
    if model.tied and model.pp > 1:
        raise ValueError("the stages would need the same embedding")
    # Ranks with the same parameters save them once, so only the first one's values count.
    state = {"model": part.sharded_state_dict(prefix=model.prefix, metadata=metadata_of(model)), "iteration": 3, "checkpoint_version": 3.0,
             "args": argparse.Namespace(num_layers=4, hidden_size=HIDDEN, num_attention_heads=4, num_query_groups=2,
                                        group_query_attention=True, ffn_hidden_size=48, swiglu=model.gated, params_dtype=model.dtype,
                                        attention_backend=AttnBackend.auto, num_experts=model.experts or None,
                                        tensor_model_parallel_size=model.tp, pipeline_model_parallel_size=model.pp)}
    if model.training:
        state["optimizer"] = optimizer_state(part, state["model"])
        state["rng_state"] = ShardedObject("rng_state", {"random": torch.get_rng_state(), "python": (3, (1, 2), None)},
                                           (world,), (rank,))
    if rank == 0:
        os.makedirs(folder)
    dist.barrier()
    dist_checkpointing.save(state, folder)
    dist.barrier()


def as_llama(tensors):
    """Returns the model with the names and layers of Hugging Face's Llama."""
    result = {"model.embed_tokens.weight": tensors["embedding.word_embeddings.weight"], "lm_head.weight": tensors["output_layer.weight"],
              "model.norm.weight": tensors["decoder.final_layernorm.weight"]}
    for number in range(4):
        theirs, ours = f"decoder.layers.{number}.", f"model.layers.{number}."
        groups = tensors[theirs + "self_attention.linear_qkv.weight"].reshape(2, 4, HIDDEN // 4, HIDDEN)  # two queries, key, value
        for name, part in (("q", groups[:, :2]), ("k", groups[:, 2]), ("v", groups[:, 3])):
            result[f"{ours}self_attn.{name}_proj.weight"] = part.reshape(-1, HIDDEN).contiguous()
        gate, up = tensors[theirs + "mlp.linear_fc1.weight"].chunk(2)
        result.update({ours + "mlp.gate_proj.weight": gate.contiguous(), ours + "mlp.up_proj.weight": up.contiguous(),
                       ours + "mlp.down_proj.weight": tensors[theirs + "mlp.linear_fc2.weight"],
                       ours + "self_attn.o_proj.weight": tensors[theirs + "self_attention.linear_proj.weight"],
                       ours + "input_layernorm.weight": tensors[theirs + "self_attention.linear_qkv.layer_norm_weight"],
                       ours + "post_attention_layernorm.weight": tensors[theirs + "mlp.linear_fc1.layer_norm_weight"]})
    return result


LLAMA_RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/rules/megatron_llama.json")


def load_model(rank, world, model, work):
    """Loads the checkpoint as Megatron does, into one model that has each expert by itself."""
    folder = f"{folder_of(work, model)}/iter_0000003"
    whole = gpt(model)
    loaded = dist_checkpointing.load({"model": whole.sharded_state_dict(prefix=model.prefix, metadata=metadata_of(model))}, folder)
    tensors, of_modules = {}, {}
    for name, tensor in loaded["model"].items():
        if not isinstance(tensor, torch.Tensor) or "_extra_state" in name:
            continue
        name = name.removeprefix(model.prefix)
        of_modules[name] = tensor.clone()
        if name.startswith("decoder.layers."):
            layer = whole.decoder.layers[int(name.split(".")[2])]
            for module, saved in (layer.submodules_config.sharded_state_dict_keys_map or {}).items():
                name = name.replace(module, saved)
        tensors[name] = tensor.clone()
    save_file(as_llama(tensors) if model.hugging_face else tensors, f"{folder_of(work, model)}.safetensors")
    save_file(of_modules, f"{folder_of(work, model)}.modules.safetensors")


def export_model(rank, world, model, work):
    """Loads the checkpoint as Megatron does, into this rank's part of the model, and exports the parts of all ranks."""
    import crossrank.torch

    folder = folder_of(work, model)
    part = gpt(model, model.tp, model.pp, model.ep)
    state = {"model": part.sharded_state_dict(metadata=metadata_of(model))}
    part.load_state_dict(dist_checkpointing.load(state, f"{folder}/iter_0000003")["model"])
    grid = crossrank.torch.Grid(
        tp_rank=parallel_state.get_tensor_model_parallel_rank(), tp=model.tp,
        pp_rank=parallel_state.get_pipeline_model_parallel_rank(), pp=model.pp,
        ep_rank=parallel_state.get_expert_model_parallel_rank(), ep=model.ep)
    config = {"num_layers": 4, "hidden_size": HIDDEN, "num_attention_heads": 4, "num_query_groups": 2, "ffn_hidden_size": 48,
              "swiglu": model.gated}
    if model.experts:
        config.update(num_experts=model.experts, moe_ffn_hidden_size=24)
    weights = {name: tensor for name, tensor in part.state_dict().items() if isinstance(tensor, torch.Tensor)}
    crossrank.torch.export_checkpoint(weights, f"{folder}/memory", config=config, grid=grid, max_shard_bytes=100_000)


def each_model(rank, world, step, models, work, failures):
    """Runs `step` for all models in the same processes, because starting them takes long. Writes the errors to a file."""
    without_gpu()
    torch.serialization.add_safe_globals([getattr, argparse.Namespace, AttnBackend])  # as Megatron's training does
    for model in models:
        try:
            step(rank, world, model, work)
        except Exception as error:
            with open(failures, "a") as file:
                file.write(json.dumps([model.name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"]) + "\n")
        parallel_state.destroy_model_parallel()


def failures_in(path, kind):
    """Returns the errors that `each_model` has written, by the names of the cases."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return {f"{kind}, {name}": reason for name, reason in map(json.loads, file)}


def folder_of(work, model):
    return f"{work}/{re.sub('[^a-zA-Z0-9]+', '-', model.name)}"


def make_models(work, models):
    """Saves and loads GPT models. Returns cases and errors."""
    failures = f"{work}/failures"
    for world in sorted({model.world for model in models}):
        run_ranks(world, each_model, save_model, [model for model in models if model.world == world], work, failures)
    run_ranks(1, each_model, load_model, [model for model in models if os.path.exists(f"{folder_of(work, model)}/iter_0000003/metadata.json")],
              work, failures)
    failed = failures_in(failures, "GPT")
    cases = []
    for model in models:
        title, folder = f"GPT, {model.name}", folder_of(work, model)
        if title in failed:
            continue
        with open(f"{folder}/latest_checkpointed_iteration.txt", "w") as latest:
            latest.write("3")
        options = ("--rules", LLAMA_RULES) if model.hugging_face else ()
        cases.append(Case("Megatron Core", title, folder if model.latest else f"{folder}/iter_0000003", [f"{folder}.safetensors"],
                          options))
    return cases, failed


def make_exports(work):
    """Merges GPT models from files, and exports them from memory. Both have the same truth."""
    models = [model for model in MODELS
              if not (model.grouped or model.metadata or model.prefix or model.training or model.hugging_face)]
    cases, failed = make_models(work, models)
    saved = [model for model in models if f"GPT, {model.name}" not in failed]
    failures = f"{work}/failed_exports"
    for world in sorted({model.world for model in saved}):
        run_ranks(world, each_model, export_model, [model for model in saved if model.world == world], work, failures)
    not_exported = failures_in(failures, "GPT from memory")
    for model in saved:
        title, folder = f"GPT from memory, {model.name}", folder_of(work, model)
        if title not in not_exported:
            cases.append(Case("Megatron Core", title, f"{folder}/memory", [f"{folder}.modules.safetensors"], merged=True))
    return cases, {**failed, **not_exported}


def make(work, wanted=()):
    """`wanted` has numbers of models; all models and the layers by default."""
    cases, failed = make_models(work, [MODELS[int(number)] for number in wanted] or MODELS)
    for world in () if wanted else (1, 2, 4):
        folder, title = f"{work}/layers-{world}", f"layers, tensor-parallel over {world} ranks"
        os.makedirs(folder)
        if failure := failure_of_ranks(world, save_layers, folder):
            failed[title] = failure
            continue
        cases.append(Case("Megatron Core", title, f"{folder}/saved", [f"{folder}/truth.safetensors"]))
    return cases, failed
