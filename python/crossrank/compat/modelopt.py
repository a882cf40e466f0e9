"""ModelOpt 0.47's `modelopt.torch.export.distribute`, over crossrank.

`install()` puts the functions of this module in the place of ModelOpt's, also inside its exporter:

    import crossrank.compat.modelopt
    crossrank.compat.modelopt.install()

Results are those of ModelOpt's own module, bit for bit. Four things differ: a rank that fails or dies ends the call on all
ranks with an error that names it; nothing has a name in /dev/shm; two jobs on one host do not see each other; and a file that
is not complete is an error, where ModelOpt drops the rank's config. Two habits of ModelOpt are kept: a config of None from
another rank is left out of the list, and the first entry is always the caller's own object.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import crossrank
from crossrank import _core

from . import groups

__all__ = ["NFSWorkspace", "get_configs_parallel", "get_tensors_parallel", "install", "uninstall"]

_TESTED_VERSION = "0.47"

_originals: dict[tuple[str, str], Any] = {}


class NFSWorkspace:
    """A directory through which ranks hand each other configs and weights, as ModelOpt's class of that name.

    `workspace_path=None` makes an object that is not initialized, as ModelOpt does. Constructing one removes the state
    that this rank left in the directory. Neither reads nor writes synchronize the ranks.

    >>> workspace = NFSWorkspace("/shared/export")
    """

    def __init__(self, workspace_path: Path | str | None = None) -> None:
        self.path = Path("") if workspace_path is None else Path(workspace_path)
        self.rank = groups.rank()
        self._workspace = None
        if workspace_path is not None:
            self._workspace = crossrank.NFSWorkspace(self.path, rank=self.rank)

    @property
    def is_initialized(self) -> bool:
        """Whether the object has a directory."""
        return self._workspace is not None

    def _require(self) -> crossrank.NFSWorkspace:
        if self._workspace is None:
            raise crossrank.UsageError("this NFSWorkspace has no directory: construct it with workspace_path")
        return self._workspace

    def write_configs_and_weights(self, config_json: dict[str, Any], weights: dict[str, Any]) -> None:
        """Replaces the state of this rank. It becomes visible to other ranks when it is complete.

        >>> workspace.write_configs_and_weights({"layer": 3}, {"w": weight})
        """
        self._require().write_configs_and_weights({"python": _encode(config_json)}, _detached(weights))

    def read_configs_and_weights_from_rank(self, target_rank: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Returns config and weights of a rank, or (None, None) if it has written none.

        >>> config, weights = workspace.read_configs_and_weights_from_rank(1)
        """
        state = self._require().read_configs_and_weights_from_rank(target_rank)
        if state is None:
            return None, None
        config, weights = state
        return _decode(config["python"]), _to_torch(weights)


@contextmanager
def get_tensors_parallel(tensor: torch.Tensor, ranks: list[int], group: Any = None) -> Iterator[list[torch.Tensor]]:
    """Gathers a tensor of each rank on the first of `ranks`, which gets all of them; the others get an empty list.

    All of them arrive on the CPU, as with ModelOpt; a tensor on a GPU is copied straight into the memory that the ranks share.
    `group` is accepted for compatibility: only `ranks` take part. Shapes and dtypes may differ. The received tensors stay
    valid as long as they are held, and writing to them changes no other rank's tensor.

    >>> with get_tensors_parallel(weight, [0, 1]) as weights:
    ...     merged = torch.cat(weights) if weights else None
    """
    with groups.until_death(groups.subgroup(ranks)) as collective:
        with _told(collective, "its tensor"):
            own = tensor.cpu() if collective.rank == 0 else tensor  # of the others, crossrank copies it once
            sent = own.detach()
        with crossrank.get_tensors_parallel(sent, group=collective) as received:
            yield [own if index == 0 else item.torch() for index, item in enumerate(received)]


@contextmanager
def get_configs_parallel(
    config: Any, ranks: list[int], group: Any, workspace_path: Path | str | None = None
) -> Iterator[list[Any]]:
    """Gathers a config of each rank on the first of `ranks`, which gets all that are not None; the others get an empty list.

    A config is a dataclass of ModelOpt's `model_config`. With `workspace_path` it travels through files of that directory.

    >>> with get_configs_parallel(layer, [0, 1], None) as layers:
    ...     model.layers.extend(layers)
    """
    from modelopt.torch.export.model_config_utils import (  # pyright: ignore[reportMissingImports]
        model_config_from_dict,
        model_config_to_dict,
        restore_model_config,
        split_config_and_weights,
    )

    def encoded() -> tuple[str | None, dict[str, torch.Tensor]]:
        if config is None or collective.rank == 0:
            return None, {}
        weights: dict[str, torch.Tensor] = {}
        fields = model_config_to_dict(config)
        fields["__name__"] = type(config).__name__
        split_config_and_weights(fields, weights)
        # Through memory ModelOpt sends JSON, which turns tuples into lists and keys into strings; through files it does not.
        return json.dumps(fields) if workspace_path is None else _encode(fields), _detached(weights)

    with groups.until_death(groups.subgroup(ranks)) as collective:
        with _told(collective, "its config"):
            text, weights = encoded()
        with crossrank.get_configs_parallel(
            {"python": text}, weights, group=collective, workspace_path=workspace_path or ""
        ) as received:
            configs = []
            for index, state in enumerate(received):
                if index == 0:
                    configs.append(config)
                elif state.config["python"] is not None:
                    fields = json.loads(state.config["python"]) if workspace_path is None else _decode(state.config["python"])
                    restore_model_config(fields, _to_torch(state.weights))
                    configs.append(model_config_from_dict(fields))
            yield configs


@contextmanager
def _told(collective: crossrank.Collective, what: str) -> Iterator[None]:
    """Tells the other ranks of an exception of the block, so that they do not wait for this one."""
    try:
        yield
    except BaseException as error:
        collective.abort(f"rank {collective.rank} cannot send {what}: {_core.reason_text(error)}")
        raise


def install() -> None:
    """Replaces ModelOpt's functions by those of this module, also where ModelOpt has imported them. Local; idempotent.

    Warns if ModelOpt has another minor version than the one that this module is tested with.

    >>> crossrank.compat.modelopt.install()
    """
    import modelopt  # pyright: ignore[reportMissingImports]
    import modelopt.torch.export.distribute  # pyright: ignore[reportMissingImports]
    import modelopt.torch.export.postprocess  # pyright: ignore[reportMissingImports]

    if modelopt.__version__.split(".")[:2] != _TESTED_VERSION.split("."):
        warnings.warn(
            f"crossrank.compat.modelopt is tested with ModelOpt {_TESTED_VERSION}, and this is ModelOpt {modelopt.__version__} "
            "(hint: compare the results of an export with those of ModelOpt's own functions)",
            stacklevel=2,
        )
    for module_name in ("modelopt.torch.export.distribute", "modelopt.torch.export.postprocess"):
        module = sys.modules[module_name]
        for name in ("NFSWorkspace", "get_configs_parallel", "get_tensors_parallel"):
            if hasattr(module, name) and (module_name, name) not in _originals:
                _originals[module_name, name] = getattr(module, name)
                setattr(module, name, globals()[name])


def uninstall() -> None:
    """Puts ModelOpt's own functions back.

    >>> crossrank.compat.modelopt.uninstall()
    """
    for (module_name, name), original in _originals.items():
        setattr(sys.modules[module_name], name, original)
    _originals.clear()


def _detached(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in weights.items()}


def _to_torch(weights: Any) -> dict[str, Any]:
    return {name: tensor.torch() for name, tensor in weights.items()}


def _encode(value: Any) -> str:
    """Returns JSON text that keeps tuples apart from lists, and keys of any type."""
    return json.dumps(_tagged(value))


def _tagged(value: Any) -> Any:
    if isinstance(value, dict):
        return {"dict": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_tagged(item) for item in value]}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise crossrank.UsageError(f"a config holds {type(value).__name__}, which cannot be sent: {value!r}")


def _decode(text: str) -> Any:
    return _untagged(json.loads(text))


def _untagged(value: Any) -> Any:
    if isinstance(value, dict):
        ((kind, items),) = value.items()
        if kind == "dict":
            return {_untagged(key): _untagged(item) for key, item in items}
        return tuple(_untagged(item) for item in items)
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    return value
