"""Torch's reduction operators as crossrank knows them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from crossrank._types import ReduceOp

_OPERATORS: dict[Any, ReduceOp] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}
# A sum of booleans is true where one of them is, a product where all of them are.
_BOOLEAN_OPERATORS: dict[ReduceOp, ReduceOp] = {
    "sum": "bor", "max": "bor", "bor": "bor", "prod": "band", "min": "band", "band": "band", "bxor": "bxor",
}  # fmt: skip

# Torch cannot divide them.
_WITHOUT_AVERAGE = (torch.bool, torch.uint16, torch.uint32, torch.uint64)


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


class Reduction:
    """A reduction as crossrank knows it, and what remains to be done with the result."""

    def __init__(self, op: Any, world_size: int) -> None:
        kind = op.op if hasattr(op, "op") else op
        self.factor: Any = None
        self.divisor = 0
        self.name: ReduceOp = "sum"
        if kind == getattr(dist.ReduceOp.RedOpType, "PREMUL_SUM", None):
            # Torch hands the factor over only in the pickled state of the operator.
            self.factor = op.__getstate__()[1]
        elif kind == dist.ReduceOp.AVG:
            self.divisor = world_size
        elif kind in _OPERATORS:
            self.name = _OPERATORS[kind]
        else:
            raise ValueError(f"the backend crossrank does not know the reduction {op}")

    def prepare(self, dense: Tensor) -> Tensor:
        """Returns a tensor of a dtype that can be reduced. It shares the memory of `dense` unless there is a factor."""
        if self.factor is not None:
            dense = dense * self.factor
        if self.divisor and dense.dtype in _WITHOUT_AVERAGE:
            raise ValueError(f"tensors of {dense.dtype} have no average: convert them first")
        if dense.is_complex():
            if self.name != "sum":
                raise ValueError(f"complex numbers cannot be reduced by {self.name}")
            return torch.view_as_real(dense)
        return dense.view(torch.uint8) if dense.dtype == torch.bool else dense

    def operator(self, dtype: torch.dtype) -> ReduceOp:
        """Returns crossrank's name of the operation for elements of `dtype`."""
        if self.divisor and not _is_integer(dtype):
            return "avg"
        return _BOOLEAN_OPERATORS[self.name] if dtype == torch.bool else self.name

    def complete(self, result: Tensor) -> None:
        """Divides a sum of integers for an average, in place."""
        if self.divisor and _is_integer(result.dtype):
            result.copy_(result // self.divisor)
