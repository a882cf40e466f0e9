"""Trains the tiny model of `tests/transforms/tiny_mlp.hpp` on the ranks of a gloo group, with PyTorch's DDP or `fully_shard`."""
import contextlib
import json

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


class Layer(torch.nn.Module):
    def __init__(self, inputs, outputs, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs, dtype=torch.float64).mul(0.5).to(dtype))
        self.bias = torch.nn.Parameter(torch.randn(outputs, dtype=torch.float64).mul(0.5).to(dtype))

    def forward(self, x, with_bias=True):
        return torch.nn.functional.linear(x, self.weight, self.bias if with_bias else None)


class TinyTorch(torch.nn.Module):
    """The same layers, names, tied and frozen parameters. `fully_shard` refuses scalars, so there the scale has one element."""

    def __init__(self, options, scale_shape):
        super().__init__()
        widths, dtype = options["widths"], getattr(torch, options["dtype"])
        self.depth = len(widths) - 1
        for i in range(self.depth):
            self.add_module(f"layer{i}", Layer(widths[i], widths[i + 1], dtype))
        if options["tied"]:
            self.layer2.weight = self.layer1.weight
        self.layer0.bias.requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.full(scale_shape, 0.75, dtype=dtype))
        if options["unused"]:
            self.unused = torch.nn.Parameter(torch.randn(7, 2, dtype=torch.float64).to(dtype))
        self.skips_last_bias = False

    def forward(self, x):
        x = x.to(self.scale.dtype)
        for i in range(self.depth):
            last = i + 1 == self.depth
            x = getattr(self, f"layer{i}")(x, not (last and self.skips_last_bias))
            x = x if last else torch.tanh(x)
        return x * self.scale


def set_values(model, values):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name].reshape(parameter.shape))


def wrap_ddp(case, model):
    config = case["config"]
    wrapped = DistributedDataParallel(
        model, find_unused_parameters=config.get("find_unused_parameters", False),
        gradient_as_bucket_view=config.get("gradient_as_bucket_view", True), static_graph=config.get("static_graph", False))
    if case["bf16_hook"]:
        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


def wrap_fully_shard(case, model, world):
    config = case["config"]
    if case["sharding"] == world:
        mesh = init_device_mesh("cpu", (world,))
    else:
        mesh = init_device_mesh("cpu", (world // case["sharding"], case["sharding"]), mesh_dim_names=("replicate", "shard"))
    mixed = dict(config.get("mixed_precision", {}))
    for key in ("param_dtype", "reduce_dtype", "output_dtype"):
        mixed[key] = getattr(torch, mixed[key]) if mixed.get(key) else None
    mixed.setdefault("cast_forward_inputs", True)
    keys = {"mesh": mesh, "reshard_after_forward": config.get("reshard_after_forward", False)}
    for i in range(model.depth):
        if not (case["model"]["tied"] and i in (1, 2)):  # modules that share a parameter belong to one group, here that of the root
            fully_shard(getattr(model, f"layer{i}"), mp_policy=MixedPrecisionPolicy(**{**mixed, "output_dtype": None}), **keys)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(**mixed), **keys)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no average
    return model


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(rank, world, case):
    """Trains a case and saves its parameters, optimizer state, losses and norms."""
    sharded = case["transform"] == "fully_shard"
    module = TinyTorch(case["model"], (1,) if sharded else ())
    set_values(module, load_file(f"{case['initial']}/model.safetensors"))
    module.skips_last_bias = case["skips_on_rank"] == rank
    model = wrap_fully_shard(case, module, world) if sharded else wrap_ddp(case, module)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options = {key: value for key, value in case["optimizer"].items() if key != "name"}
    copies = [parameter.detach().float().requires_grad_() for parameter in trained] if case["float_state"] else trained
    optimizer = getattr(torch.optim, case["optimizer"]["name"])(copies, **options)
    data = load_file(case["data"])
    parts = case["microbatches"]
    rows = data["inputs"].shape[1] // world // parts
    losses, norms = [], []
    for inputs, targets in zip(data["inputs"], data["targets"]):
        for parameter in trained:
            parameter.grad = None
        total = torch.zeros((), dtype=torch.float64)
        for part in range(parts):
            synced = part + 1 == parts or case["config"].get("sync_grad_accum", False)
            if sharded:
                model.set_requires_gradient_sync(synced)
            begin = (rank * parts + part) * rows
            with contextlib.nullcontext() if sharded or synced else model.no_sync():
                outputs = model(inputs[begin:begin + rows].to(module.scale.dtype)).double()
                loss = (outputs - targets[begin:begin + rows]).square().mean() / parts
                loss.backward()
            total += loss.detach()
        dist.all_reduce(total)
        losses.append(total.item() / world)
        if case["max_norm"] > 0:
            norms.append(whole(torch.nn.utils.clip_grad_norm_(trained, case["max_norm"])).item())
        if case["float_state"]:
            step_on_copies(optimizer, trained, copies)
        else:
            optimizer.step()
    state = {id(parameter): optimizer.state.get(copy, {}) for parameter, copy in zip(trained, copies)}
    save(module, state, case, losses, norms)


def step_on_copies(optimizer, trained, copies):
    """Changes float32 copies of the parameters, and rounds the result."""
    with torch.no_grad():
        for parameter, copy in zip(trained, copies):
            copy.copy_(parameter.detach().float())
            copy.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        for parameter, copy in zip(trained, copies):
            parameter.copy_(copy.to(parameter.dtype))


def save(module, states, case, losses, norms):
    parameters, state = {}, {}
    for name, parameter in module.named_parameters():
        parameters[name] = whole(parameter.detach()).clone()
        for kind, value in states.get(id(parameter), {}).items():
            state[f"optimizer.state.{name}.{kind}"] = whole(value).clone()
    if dist.get_rank() == 0:
        save_file(parameters, f"{case['truth']}/model.safetensors")
        save_file(state, f"{case['truth']}/optimizer.safetensors")
        with open(f"{case['truth']}/log.json", "w", encoding="utf-8") as file:
            json.dump({"losses": losses, "norms": norms}, file)


def train_all(rank, world, cases):
    """Trains all cases in one group, because starting ranks takes longer than training."""
    for case in cases:
        train(rank, world, case)
