"""Moves configs and weights between the ranks of one job, and merges sharded checkpoints.

>>> import crossrank
>>> with crossrank.connect() as world:
...     world.all_reduce(gradient)
"""

from . import logs as _logs
from ._core import __version__
from .checkpoint import (
    Defect,
    MergePlan,
    Requantized,
    Summary,
    VerifyReport,
    consolidate,
    convert,
    inspect,
    load,
    save,
    save_sharded,
    split,
    verify,
)
from .collective import Collective, Request, connect, statistics
from .coordinator import Dispatched, GroupCoordinator, TensorDictReceive, TensorDictSend
from .device import default_device, stream, trim
from .errors import (
    BackendError,
    CancelledError,
    Error,
    FormatError,
    IoError,
    MismatchError,
    PeerLostError,
    RemoteError,
    TimeoutError,
    UnavailableError,
    UsageError,
)
from .gather import CollectiveRange, RankedState, get_configs_parallel, get_tensors_parallel
from .helpers import compute_and_broadcast, gather_from_all_ranks, reduce_and_broadcast, zero_first, zero_only
from .mesh import JobCollective, Mesh, MeshCollective
from .message_queue import MessageQueue
from .parts import PartsPlan, consolidate_part, finish_parts, part_from_environment
from .tensor import Tensor, as_tensor, concat, empty, slice, zeros
from .workspace import NFSWorkspace, SharedMemoryWorkspace

__all__ = [
    "BackendError",
    "CancelledError",
    "Collective",
    "CollectiveRange",
    "Defect",
    "Dispatched",
    "Error",
    "FormatError",
    "GroupCoordinator",
    "IoError",
    "JobCollective",
    "MergePlan",
    "Mesh",
    "MeshCollective",
    "MessageQueue",
    "MismatchError",
    "NFSWorkspace",
    "PartsPlan",
    "PeerLostError",
    "RankedState",
    "RemoteError",
    "Requantized",
    "Request",
    "SharedMemoryWorkspace",
    "Summary",
    "Tensor",
    "TensorDictReceive",
    "TensorDictSend",
    "TimeoutError",
    "UnavailableError",
    "UsageError",
    "VerifyReport",
    "__version__",
    "as_tensor",
    "compute_and_broadcast",
    "concat",
    "connect",
    "consolidate",
    "consolidate_part",
    "convert",
    "default_device",
    "empty",
    "finish_parts",
    "gather_from_all_ranks",
    "get_configs_parallel",
    "get_tensors_parallel",
    "inspect",
    "load",
    "part_from_environment",
    "reduce_and_broadcast",
    "save",
    "save_sharded",
    "slice",
    "split",
    "statistics",
    "stream",
    "trim",
    "verify",
    "zero_first",
    "zero_only",
    "zeros",
]

_logs.start()
