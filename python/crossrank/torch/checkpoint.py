"""Checkpoints from models whose parameters are spread over ranks: FSDP2, DTensor, and plain shards such as Megatron's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.parallel import DistributedDataParallel

from crossrank import Summary, UsageError, _core
from crossrank._options import Format, FusedLayout, ReadBack
from crossrank._types import path_text
from crossrank.compat import groups
from crossrank.progress import Display, OnProgress

__all__ = ["ExportRequest", "Grid", "async_export_checkpoint", "export_checkpoint", "gather_full_state_dict", "reshard"]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The place of this rank in a grid of tensor, pipeline and expert parallelism, for parameters that are plain tensors.

    Every rank passes its own ranks and the sizes that all have. Rules merge the shards, as they merge shards in files: those of
    the model's architecture, which its config names, or those of a file.

    >>> grid = crossrank.torch.Grid(tp_rank=mpu.get_tensor_model_parallel_rank(), tp=8)
    """

    tp_rank: int = 0
    """The tensor-parallel rank."""
    tp: int = 1
    """The tensor-parallel size."""
    pp_rank: int = 0
    """The pipeline stage."""
    pp: int = 1
    """The number of pipeline stages."""
    ep_rank: int = 0
    """The expert-parallel rank."""
    ep: int = 1
    """The expert-parallel size."""
    moe_ep: int = 1
    """The number of groups of experts among the tensor-parallel ranks."""


_ALONE = Grid()


def export_checkpoint(
    model: torch.nn.Module | dict[str, torch.Tensor],
    out: str | Path,
    *,
    config: dict[str, Any] | None = None,
    assets: str | Path | None = None,
    max_shard_bytes: int = 5_000_000_000,
    single_file: bool = False,
    format: Format = "safetensors",
    rules: str | Path | None = None,
    direction: Literal["forward", "backward"] = "forward",
    fused_layout: FusedLayout = "automatic",
    grid: Grid = _ALONE,
    force: bool = False,
    read_back: ReadBack = "none",
    threads: int = 0,
    progress: bool | OnProgress | None = None,
) -> Summary:
    """Writes a model as one Hugging Face checkpoint, from the memory of all ranks. Collective over torch's ranks.

    `model` is a module or a state dict. The names of a module are those without the wrappers of `torch.compile` and
    DistributedDataParallel. A parameter that is a `DTensor` is spread over the ranks as its placements say; every
    other one is a shard at the place of this rank in `grid`, and the same on all ranks with that place. No shard is written and
    no rank holds the whole model. Parameters on the CPU and on CUDA GPUs are read where they are, in pieces; those on other
    devices, and those that are not contiguous, are copied first. In addition a rank needs at most 256 MiB, 1.25 KiB for each
    tensor, and 0.2 KiB for each of its tensor-parallel shards. After a crash, the directory `out` holds the old checkpoint or
    the new one; if the crash came between two renames, `crossrank clean` completes the new one.

    The ranks of a `DeviceMesh` must ascend along each of its dimensions.

    `config` becomes `config.json`; by default it is the model's own. `assets` is a directory whose tokenizer and similar files
    are copied. A file of `rules` translates names and layouts, for example those of Megatron; with the `direction` "backward"
    it gives the names of its patterns to parameters that have the names in `rename`. `fused_layout` says how layers such as
    gate_up_proj were sharded, if their shards do not show it. `force` replaces an existing checkpoint. `read_back="all"`
    compares the written files with what was sent. `threads` is the number of threads of this rank, at most 4.

    `progress` gets on rank 0 the finished bytes, all bytes and the stage. True shows a bar of tqdm, or lines without tqdm. An
    exception of it ends the export: rank 0 raises the same, and the others a `RemoteError`.

    >>> crossrank.torch.export_checkpoint(model, "out", assets="meta-llama")
    """
    arguments = _export_arguments(
        model, out, grid=grid, config=config, assets=assets, max_shard_bytes=max_shard_bytes, single_file=single_file,
        format=format, rules=rules, direction=direction, fused_layout=fused_layout, force=force, read_back=read_back,
        threads=threads,
    )  # fmt: skip
    with _job(arguments) as (group, arguments), Display(progress) as display:
        return Summary(**_core.export_checkpoint(group._native, arguments, display.report))


class ExportRequest:
    """An export in the background. Every rank keeps it until `wait` has returned; dropping it cancels the export.

    >>> request = crossrank.torch.async_export_checkpoint(model, "step_100")
    """

    def __init__(self, native: _core.BackgroundExport, display: Display) -> None:
        self._native = native
        self._display = display
        self._summary: Summary | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Returns whether the export has ended on this rank.

        >>> ended = request.done()
        """
        return self._native.done()

    def wait(self) -> Summary:
        """Blocks until the export has ended, and returns its result or raises its error. Ctrl-C cancels it.

        >>> print(request.wait().bytes)
        """
        if self._error is not None:
            raise self._error
        if self._summary is None:
            try:
                self._summary = Summary(**self._native.wait())
            except BaseException as error:
                self._error = error
                raise
            finally:
                self._display.close()
        return self._summary


def async_export_checkpoint(
    model: torch.nn.Module | dict[str, torch.Tensor],
    out: str | Path,
    *,
    config: dict[str, Any] | None = None,
    assets: str | Path | None = None,
    max_shard_bytes: int = 5_000_000_000,
    single_file: bool = False,
    format: Format = "safetensors",
    rules: str | Path | None = None,
    direction: Literal["forward", "backward"] = "forward",
    fused_layout: FusedLayout = "automatic",
    grid: Grid = _ALONE,
    force: bool = False,
    read_back: ReadBack = "none",
    threads: int = 0,
    max_copy_bytes: int = 0,
    progress: bool | OnProgress | None = None,
) -> ExportRequest:
    """Copies a model and writes it in the background, as `export_checkpoint` does. Collective over torch's ranks.

    Returns once every rank has copied its parameters, so training may continue and change them. `max_copy_bytes` limits the
    copy of a rank; by default the free memory does. `UnavailableError` on all ranks when a rank's parameters exceed its limit.
    `progress` is called in a thread of the library. If it raises, the export ends, and `wait` raises the same.

    >>> request = crossrank.torch.async_export_checkpoint(model, "step_100")
    >>> train()
    >>> request.wait()
    """
    arguments = _export_arguments(
        model, out, grid=grid, config=config, assets=assets, max_shard_bytes=max_shard_bytes, single_file=single_file,
        format=format, rules=rules, direction=direction, fused_layout=fused_layout, force=force, read_back=read_back,
        threads=threads, max_copy_bytes=max_copy_bytes,
    )  # fmt: skip
    native = _core.BackgroundExport()
    with _job(arguments) as (group, arguments):
        display = Display(progress)
        try:
            native.start(group._native, arguments, display.report)
            return ExportRequest(native, display)
        except KeyboardInterrupt as late:
            if native.started():  # the other ranks have returned, and learn in `wait` that the export was cancelled
                native.cancel()
                late.group_usable = True  # type: ignore[attr-defined]
            raise


@contextmanager
def _job(*callbacks: Callable[..., Any] | None) -> Iterator[tuple[Any, ...]]:
    """Yields a group of all ranks, and the callbacks for the core, which tells all ranks of their exceptions.

    The first callback returns the arguments.
    """
    told: list[BaseException] = []

    def noted(callback: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if callback is None:
            return None

        def call(*arguments: Any) -> Any:
            try:
                return callback(*arguments)
            except BaseException as error:
                # Ctrl-C in the arguments aborts the group: this rank cannot wait for the others to tell them.
                if not (isinstance(error, KeyboardInterrupt) and callback is callbacks[0]):
                    told.append(error)
                raise

        return call

    with groups.until_death(groups.world(), told) as group:
        yield (group, *map(noted, callbacks))


# Returns the tensors of this rank, their placements, and the options as the core takes them. The core calls it, so that an
# exception ends the call on all ranks.
Arguments = Callable[[], tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]], dict[str, Any]]]


def _export_arguments(
    model: torch.nn.Module | dict[str, torch.Tensor],
    out: str | Path,
    *,
    grid: Grid,
    config: dict[str, Any] | None,
    **options: Any,
) -> Arguments:
    """Returns a function that reads the arguments of an export. The default of `config` is the model's own."""

    def read() -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]], dict[str, Any]]:
        weights, placements = _weights_and_placements(model, _tied_names(model))
        places = {"out": path_text(out), "grid": _sizes_of(grid, "grid"), "config": _config_of(model, config)}
        return weights, placements, {**places, **options}

    return read


def _config_of(model: torch.nn.Module | dict[str, torch.Tensor], config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns `config`, by default the model's own. Keys that are numbers become text, as transformers saves them."""
    if config is None:
        to_json = getattr(getattr(_unwrapped(model), "config", None), "to_json_string", None)
        return None if to_json is None else json.loads(to_json())
    return _with_text_keys(config)


def _with_text_keys(value: Any) -> Any:
    """Returns the value with the keys that `json.dump` writes."""
    if isinstance(value, dict):
        numbers = (int, float, bool, type(None))
        return {json.dumps(key) if isinstance(key, numbers) else key: _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value


def _sizes_of(grid: Grid, argument: str) -> dict[str, int]:
    if not isinstance(grid, Grid):
        raise UsageError(f"{argument} is a {type(grid).__name__}. Pass a crossrank.torch.Grid")
    return asdict(grid)


def gather_full_state_dict(
    model: torch.nn.Module | dict[str, torch.Tensor],
    dst: int = 0,
    *,
    config: dict[str, Any] | None = None,
    rules: str | Path | None = None,
    direction: Literal["forward", "backward"] = "forward",
    fused_layout: FusedLayout = "automatic",
    grid: Grid = _ALONE,
) -> dict[str, torch.Tensor]:
    """Returns the whole state dict on rank `dst`, and an empty one elsewhere. Collective over torch's ranks.

    The options are those of `export_checkpoint`; shards in a `grid` need the `config` of their model, or `rules`.

    >>> state_dict = crossrank.torch.gather_full_state_dict(model)
    """
    options = {"config": config, "rules": rules, "direction": direction, "fused_layout": fused_layout, "dst": dst}

    def read() -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]], dict[str, Any]]:
        return *_weights_and_placements(model, set()), {"grid": _sizes_of(grid, "grid"), **options}

    with _job(read) as (group, arguments):
        full = _core.get_full_state_dict(group._native, arguments)
    return {name: tensor.torch() for name, tensor in full.items()}


def reshard(
    model: torch.nn.Module | dict[str, torch.Tensor],
    to: Grid,
    *,
    grid: Grid = _ALONE,
    wants: Callable[[str], bool] | None = None,
    config: dict[str, Any] | None = None,
    rules: str | Path | None = None,
    direction: Literal["forward", "backward"] = "forward",
    fused_layout: FusedLayout = "automatic",
) -> dict[str, torch.Tensor]:
    """Returns this rank's shards of the model in the grid `to`, in memory. Collective over torch's ranks.

    A training layout becomes that of an inference engine, say: parameters of FSDP2 or DTensor, or shards in `grid`, become
    tensor-parallel shards. The rules of the model's architecture, or those of a file, split the tensors; `config` is by
    default the model's own. A rank receives only its own slices, each from one rank. `wants` says by the name of a tensor
    whether this rank gets it, such as those of its pipeline stage. Ranks with the same place in `to` must give the same
    answers.

    >>> shards = crossrank.torch.reshard(model, crossrank.torch.Grid(tp_rank=rank % 4, tp=4))
    """
    options = {"rules": rules, "direction": direction, "fused_layout": fused_layout}

    def read() -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]], dict[str, Any]]:
        weights, placements = _weights_and_placements(model, _tied_names(model))
        places = {"grid": _sizes_of(grid, "grid"), "to": _sizes_of(to, "to"), "config": _config_of(model, config)}
        return weights, placements, {**places, **options}

    with _job(read, wants) as (group, arguments, wants):
        shards = _core.reshard(group._native, arguments, wants)
    return {name: tensor.torch() for name, tensor in shards.items()}


def _weights_and_placements(
    model: torch.nn.Module | dict[str, torch.Tensor], skipped: set[str]
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
    """Returns this rank's tensors, and for those that are spread over ranks how they are. Modules without extra state have
    None for it, which is left out."""
    from torch.distributed.tensor import DTensor

    if isinstance(model, dict):
        named = model.items()
    else:
        named = [(_name_without_wrappers(model, name), tensor) for name, tensor in model.state_dict().items()]
    weights, placements = {}, {}
    for name, tensor in named:
        if name in skipped or tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(
                f"the state dict holds a {type(tensor).__name__} under {name}, which is not a tensor. "
                "Pass a state dict without it"
            )
        if isinstance(tensor, DTensor):
            _require_ascending(name, tensor.device_mesh.mesh)
            placements[name] = {
                "mesh_shape": list(tensor.device_mesh.mesh.shape),
                "mesh_ranks": tensor.device_mesh.mesh.flatten().tolist(),
                "placements": [_placement(placement) for placement in tensor.placements],
                "shape": _shape_in_files(tensor),
            }
            tensor = tensor.to_local()
        _require_values(name, tensor)
        weights[name] = _readable(tensor.detach())
    return weights, placements


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in contiguous memory, of the CPU or of a CUDA GPU."""
    is_on_cuda = tensor.is_cuda and torch.version.cuda is not None  # not ROCm, whose tensors have the same device
    return (tensor if is_on_cuda else tensor.cpu()).contiguous()


def _require_ascending(name: str, mesh: torch.Tensor) -> None:
    """Raises `UsageError` unless the ranks of a mesh ascend along each dimension.

    On other meshes, torch places shards by the order of the process group and its distributed checkpoints by that of the mesh.
    """
    if all((mesh.diff(dim=dim) > 0).all() for dim in range(mesh.dim())):
        return
    raise UsageError(
        f"the ranks of the mesh of {name} do not ascend: expected larger ranks along each dimension, got {mesh.tolist()} "
        "(hint: make the mesh of ranks in ascending order)"
    )


def _require_values(name: str, tensor: torch.Tensor) -> None:
    """Raises `UsageError` unless a tensor has its values in strided memory."""
    from torch.distributed._shard.sharded_tensor.api import ShardedTensor

    what = ""
    if isinstance(tensor, ShardedTensor):
        what = "a ShardedTensor. Give FullyShardedDataParallel a device_mesh, so that its sharded state dict holds DTensors"
    elif tensor.is_nested:
        what = "a nested tensor. Pass its padded form, or its values and offsets as two tensors"
    elif tensor.layout is not torch.strided:
        what = f"a tensor with the layout {tensor.layout}. Pass its dense form: to_dense()"
    elif tensor.is_meta:
        what = "a tensor on the device meta, which has no values. Load or initialize the model first"
    if what:
        raise UsageError(f"the state dict holds under {name} {what}")


def _shape_in_files(tensor: torch.Tensor) -> list[int]:
    """Returns the shape as safetensors has it: an element of torch's F4 is two values."""
    shape = list(tensor.shape)
    if shape and tensor.dtype is getattr(torch, "float4_e2m1fn_x2", None):
        shape[-1] *= 2
    return shape


# The name under which the wrapper of torch.compile holds a module.
_COMPILED = "_orig_mod"


def _unwrapped(model: torch.nn.Module | dict[str, torch.Tensor]) -> torch.nn.Module | dict[str, torch.Tensor]:
    """Returns the module inside the wrappers of torch.compile and DistributedDataParallel."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, _COMPILED):
            model = getattr(model, _COMPILED)
        else:
            return model


def _name_without_wrappers(model: torch.nn.Module, name: str) -> str:
    """Returns the name that a tensor of the state dict has without those wrappers, which a submodule may have too."""
    module: Any = model
    parts = []
    for part in name.split("."):
        is_wrapper = part == _COMPILED or (part == "module" and isinstance(module, DistributedDataParallel))
        if not is_wrapper:
            parts.append(part)
        module = getattr(module, part, None)
    return ".".join(parts)


def _tied_names(model: torch.nn.Module | dict[str, torch.Tensor]) -> set[str]:
    """Returns the names that a transformers model ties to another parameter, and does not store for that reason."""
    model = _unwrapped(model)
    names = getattr(model, "_tied_weights_keys", None) or ()
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return set()
    return set(names)


def _placement(placement: Any) -> tuple[Any, ...]:
    if placement.is_replicate():
        return ("replicate",)
    if placement.is_partial():
        return ("partial", placement.reduce_op)
    if hasattr(placement, "split_factor"):
        return ("strided_shard", placement.dim, placement.split_factor)
    if placement.is_shard():
        return ("shard", placement.dim)
    raise UsageError(f"the placement {placement} of a DTensor is not known")
