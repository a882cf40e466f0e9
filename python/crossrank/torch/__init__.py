"""crossrank for PyTorch: the backend "crossrank" of `torch.distributed`.

import crossrank.torch
torch.distributed.init_process_group("crossrank")
"""

from .checkpoint import ExportRequest, Grid, async_export_checkpoint, export_checkpoint, gather_full_state_dict, reshard
from .memory import share_memory
from .process_group import CrossrankProcessGroup, register

__all__ = [
    "CrossrankProcessGroup",
    "ExportRequest",
    "Grid",
    "async_export_checkpoint",
    "export_checkpoint",
    "gather_full_state_dict",
    "register",
    "reshard",
    "share_memory",
]

register()
