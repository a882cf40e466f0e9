"""Merges, splits, verifies, loads and saves checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from . import _core
from ._options import ConsolidateOptions, ConvertOptions, Format, PlanOptions, SaveOptions, SplitOptions, VerifyOptions
from ._types import Weights, path_text
from .collective import Collective, connect, native_of
from .errors import FormatError, UnavailableError, UsageError, from_native
from .progress import Display, OnProgress
from .tensor import Tensor

if TYPE_CHECKING:
    import torch

Path = str | os.PathLike[str]

_INDEX = "model.safetensors.index.json"


class Summary(NamedTuple):
    """The result of a job."""

    bytes: int
    files: int
    resumed_files: int
    seconds: float


class Defect(NamedTuple):
    """One defect of a checkpoint."""

    kind: str
    resource: str
    text: str
    hint: str


class VerifyReport(NamedTuple):
    """The findings of `verify`."""

    defects: list[Defect]
    files: int
    tensors: int
    bytes: int
    bytes_read: int
    """The data that was read; 0 where headers were enough."""

    @property
    def ok(self) -> bool:
        """Whether no defect was found."""
        return not self.defects


def _run(native: Callable[[OnProgress | None], Any], progress: bool | OnProgress | None) -> Any:
    """Runs a job and shows its progress."""
    with Display(progress) as display:
        return native(display.report)


def _world(world: Collective | None) -> Any:
    return native_of(connect() if world is None else world)


class Requantized(NamedTuple):
    """A tensor whose stored values change because the ranks' scales differ."""

    tensor: str
    bound: str
    """The largest possible change of a value, in words."""


class MergePlan:
    """How the tensors of sharded files become those of one model. Making it reads only headers. Collective.

    Options: rules, source_tp, pp, ep, moe_ep, pattern, policy ("exact", "rescale", "requantize"), model_key, crc ("require",
    "warn", "ignore"), extra_globals, fused_layout ("automatic", "per_rank", "plain"). `extra_globals` lists more classes that
    torch archives may mention; none is ever called.

    >>> plan = crossrank.MergePlan("shards/")
    >>> print(plan.explain("lm_head.weight"))
    >>> crossrank.consolidate(plan, "model/")
    """

    __slots__ = ("_native",)

    def __init__(self, shards: Path, *, world: Collective | None = None, **options: Unpack[PlanOptions]) -> None:
        self._native = _core.make_plan(_world(world), path_text(shards), options)

    @classmethod
    def load(cls, file: Path, *, world: Collective | None = None) -> Self:
        """Returns the plan that `save` wrote. `FormatError` when its inputs have changed.

        >>> plan = crossrank.MergePlan.load("plan.json")
        """
        plan = cls.__new__(cls)
        plan._native = _core.load_plan(_world(world), path_text(file))
        return plan

    @property
    def tensors(self) -> list[str]:
        """The names of all tensors of the result."""
        return self._native.tensors()

    @property
    def bytes(self) -> int:
        """The size of all tensors of the result."""
        return self._native.bytes()

    @property
    def hash(self) -> int:
        """A hash of everything that determines the result: names, shapes, rules, inputs and their sizes."""
        return self._native.hash()

    def requantized(self) -> list[Requantized]:
        """Returns the tensors whose values the option `policy` changes. Empty when all scales agree.

        >>> crossrank.MergePlan("shards/", policy="requantize").requantized()
        """
        return [Requantized(*each) for each in self._native.requantized()]

    def explain(self, tensor: str) -> str:
        """Returns which shards, which rule and which bytes make up a tensor.

        >>> print(plan.explain("lm_head.weight"))
        """
        return self._native.explain(tensor)

    def read(self, tensor: str) -> Tensor:
        """Returns one tensor of the result, in memory of its own. Reads only its bytes, and compares its replicas.

        >>> plan.read("lm_head.weight").torch()
        """
        return self._native.read(tensor)

    def to_json(self) -> dict[str, Any]:
        """Returns the whole plan.

        >>> plan.to_json().keys()
        """
        return self._native.to_json()

    def save(self, file: Path) -> None:
        """Writes the plan to a new file.

        >>> plan.save("plan.json")
        """
        self._native.save(path_text(file))


def consolidate(
    shards: Path | MergePlan,
    out: Path,
    *,
    world: Collective | None = None,
    progress: bool | OnProgress = False,
    **options: Unpack[ConsolidateOptions],
) -> Summary:
    """Writes the merged model of sharded files, or of a plan, as a Hugging Face checkpoint. Collective over `world`.

    Options: max_shard_bytes, force, resume, threads, single_file, read_back ("all", "none"), format ("safetensors", "torch",
    "images"), and those of `MergePlan`.

    `progress` gets on rank 0 the finished bytes, all bytes and the stage. True shows a bar of tqdm, or lines without tqdm. An
    exception of it ends the job: rank 0 raises the same, and the others a `RemoteError`.

    >>> crossrank.consolidate("shards/", "model/", progress=True)
    """
    native = _world(world)
    source = shards._native if isinstance(shards, MergePlan) else path_text(shards)
    return Summary(**_run(lambda on: _core.consolidate(native, source, path_text(out), on, options), progress))


def convert(
    source: Path,
    out: Path,
    *,
    to: Format = "safetensors",
    tp: int | None = None,
    world: Collective | None = None,
    progress: bool | OnProgress = False,
    **options: Unpack[ConvertOptions],
) -> Summary:
    """Writes a checkpoint in another format, and with `tp` for another number of ranks. Collective over `world`.

    Options as for `consolidate`, or with `tp` as for `split`.

    >>> crossrank.convert("model.pth", "model/", to="safetensors")
    """
    if tp is not None:
        return split(source, out, tp=tp, world=world, progress=progress, format=to, **options)
    return consolidate(source, out, world=world, progress=progress, format=to, **options)


def split(
    model: Path, out: Path, *, tp: int, world: Collective | None = None, progress: bool | OnProgress = False,
    **options: Unpack[SplitOptions],
) -> Summary:  # fmt: skip
    """Splits a model for `tp` ranks. Collective over `world`.

    Options: force, resume, threads, read_back, format, moe_ep, and those of `MergePlan`. `moe_ep` is the number of groups of
    stacked experts among the ranks of the result. That of the input is `source_moe_ep` here.

    >>> crossrank.split("model/", "shards/", tp=4)
    """
    native = _world(world)
    return Summary(**_run(lambda on: _core.split(native, path_text(model), path_text(out), tp, on, options), progress))


def verify(
    path: Path, *, world: Collective | None = None, progress: bool | OnProgress = False, **options: Unpack[VerifyOptions]
) -> VerifyReport:
    """Finds all defects of shards or of a whole checkpoint. Collective over `world`.

    Options: numbers, checksums, threads, and those of `MergePlan`.

    >>> crossrank.verify("model/").ok
    True
    """
    native = _world(world)
    report = _run(lambda on: _core.verify(native, path_text(path), on, options), progress)
    return VerifyReport(**{**report, "defects": [Defect(*each) for each in report["defects"]]})


def inspect(path: Path) -> dict[str, Any]:
    """Returns what `crossrank inspect --json` says about a file or a directory.

    >>> crossrank.inspect("model/")["ok"]
    """
    import subprocess

    place = path_text(path)
    if not place:  # the command would list the jobs
        raise UsageError("inspect: the path is empty")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "crossrank")
    done = subprocess.run([program, "inspect", "--json", "--", place], capture_output=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip()
        raise UnavailableError(f"inspect: {program} ended with {done.returncode}: {said or 'no answer'}") from None
    if "error" in answer:
        error = answer["error"]
        raise from_native(error["code"], error["what"], "", error)
    return answer


class LazyTensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name. Each is read, or mapped, when it is asked for.

    >>> weights = crossrank.load("model/")
    >>> weights["lm_head.weight"].torch()
    """

    def __init__(self, readers: Mapping[str, Callable[[str], Tensor]], opened: tuple[str, bool, PlanOptions]) -> None:
        """Stores for each tensor the function that returns it, and the arguments of the `load` that made them."""
        self._readers = readers
        self._opened = opened

    def __reduce__(self) -> tuple[Callable[..., LazyTensors], tuple[str, bool, PlanOptions]]:
        """A copy, also in another process, loads the checkpoint again."""
        return _load, self._opened

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name](name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def torch(self) -> dict[str, torch.Tensor]:
        """Returns all tensors as tensors of torch, such as for `load_state_dict`. Those of mapped files are mapped.

        >>> model.load_state_dict(crossrank.load("model/").torch())
        """
        return {name: tensor.torch() for name, tensor in self.items()}


def load(path: Path, *, checksums: bool = False, **options: Unpack[PlanOptions]) -> LazyTensors:
    """Returns the tensors of a checkpoint by name, without reading their data. Local.

    From a safetensors file, `model.safetensors`, or the files of a `model.safetensors.index.json`, a tensor is a view of
    the mapped file. It stays valid without the result of this call. Nobody may write or shorten a mapped file. With
    `checksums=True` a tensor is read into memory of its own instead, and compared with its checksum. The files of a
    workspace and each file of the format "images" have checksums. A file without them is a `FormatError`.

    Anything else that `crossrank inspect` knows, such as shards, torch archives and distributed checkpoints, is merged as
    `consolidate` does it, tensor by tensor: each access reads the bytes of one tensor and compares its replicas. With
    options of `MergePlan` everything is read in this way, and `checksums=True` is an error.

    Raises `FormatError` for replicas that differ, and for a file or tensor of an index that is missing.

    >>> crossrank.load("model/")["lm_head.weight"].shape
    >>> crossrank.load("shards/", source_tp=8)["lm_head.weight"].shape
    """
    place = path_text(path)
    if os.path.basename(place) == _INDEX:
        place = os.path.dirname(place) or "."
    return _load(place, checksums, options)


def _load(place: str, checksums: bool, options: PlanOptions) -> LazyTensors:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    opened = os.path.abspath(place) if place else place, checksums, options
    if checksums and given:
        raise UsageError(f"load: checksums=True cannot be combined with {', '.join(given)}. Call crossrank.verify")
    readers = None if given else _safetensors_readers(place, checksums)
    if readers is not None:
        return LazyTensors(readers, opened)
    if checksums:
        raise UsageError(
            f"load: checksums=True needs a safetensors file or a model of such files, and {place} is neither. "
            "Call crossrank.verify"
        )
    plan = _core.make_local_plan(place, given)
    return LazyTensors(dict.fromkeys(plan.tensors(), plan.read), opened)


def _safetensors_readers(place: str, checksums: bool) -> dict[str, Callable[[str], Tensor]] | None:
    """Returns a function for each tensor of a safetensors file or of a model in such files; None if it is neither."""
    index, files = None, [place]
    if os.path.isdir(place):
        index = _index_of(place)
        files = [os.path.join(place, "model.safetensors")] if index is None else sorted(set(index.values()))
        if index is None and not os.path.exists(files[0]):
            return None
    elif not place.endswith(".safetensors"):
        return None
    readers: dict[str, Callable[[str], Tensor]] = {}
    for path in files:
        file = _core.SafetensorsFile(path)
        if checksums and not any(key == "crossrank.checksums" for key, _ in file.metadata()):
            raise FormatError(f"load: {path} has no checksums. Load it without checksums=True")
        read = file.read if checksums else file.map
        readers.update((name, read) for name in file.names() if index is None or index.get(name, path) == path)
    for name, path in (index or {}).items():
        if name not in readers:
            raise FormatError(f"load: {path} does not hold the tensor {name}, which the index of the model names")
    return readers


def _index_of(directory: str) -> dict[str, str] | None:
    """Returns the path of each tensor that the index of a model lists; None without an index."""
    path = os.path.join(directory, _INDEX)
    try:
        with open(path, encoding="utf-8") as file:
            files = json.load(file)["weight_map"]
        if not isinstance(files, dict) or not files:
            raise ValueError("weight_map lists no tensors")
        if not all(isinstance(file, str) and file and os.path.basename(file) == file for file in files.values()):
            raise ValueError("weight_map names something else than files of this directory")
    except FileNotFoundError:
        return None
    except OSError as error:
        fields = {"operation": "load", "resource": path, "errno": error.errno}
        raise from_native("io", f"load: {path} cannot be read: {error.strerror}", "", fields) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"load: {path} is not the index of a model: {error!r}") from None
    index = {name: os.path.join(directory, file) for name, file in files.items()}
    for name, file in index.items():
        if not os.path.exists(file):
            raise FormatError(f"load: {file} is missing, which holds {name} by the index of the model")
    return index


def save(path: Path, weights: Weights, *, metadata: Mapping[str, str] | None = None, force: bool = False) -> None:
    """Writes a safetensors file, which appears complete and durable or not at all. After Ctrl-C it may still appear.

    An existing file is an `IoError`, unless `force` is set. It is then replaced at the end; tensors that view it stay valid.

    >>> crossrank.save("model.safetensors", model.state_dict())
    """
    described = {"format": "pt"} if metadata is None else metadata
    for key, value in described.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"the metadata {key!r}: {value!r} is not text. Safetensors files hold text only")
    _core.save_safetensors(path_text(path), dict(weights), list(described.items()), force)


def save_sharded(
    weights: Weights, out: Path, *, world: Collective, config: Any = None, progress: bool | OnProgress = False,
    **options: Unpack[SaveOptions],
) -> Summary:  # fmt: skip
    """Saves the weights of all ranks as one checkpoint, with one file per rank. Collective.

    Options: force, threads, read_back, format.

    >>> crossrank.save_sharded(model.state_dict(), "shards/", world=world)
    """
    native, place = native_of(world), path_text(out)

    def arguments() -> tuple[dict[str, Any], dict[str, Any]]:  # the core calls it, and tells all ranks of its exception
        return dict(weights), {"config": config, **options}

    return Summary(**_run(lambda on: _core.save_sharded(native, arguments, place, on), progress))
