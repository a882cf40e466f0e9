"""`all_reduce` of sparse tensors in the backend "crossrank"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch import Tensor

import crossrank

from .layout import bytes_of
from .pending import Operations, OperationWork, Started

__all__ = ["SparseReductions"]

# Tells the announcement of a sparse tensor from a gather of the program.
_MARK = 0x7370_6172_7365


class SparseReductions:
    """The sums of sparse tensors of a process group.

    A rank learns how many rows the others have before it can gather them. Each sum announces its rows on the process
    group, whose order of operations it is part of. It waits for the announcements and gathers the rows on a group of the
    same ranks that carries nothing else, so that other operations need not wait.
    """

    def __init__(
        self, group: crossrank.Collective, rows: crossrank.Collective, operations: Operations, abort: Callable[[str], None]
    ) -> None:
        """`group` and `operations` are those of the process group. `rows` is the other group."""
        self._groups: tuple[crossrank.Collective, ...] = (group, rows)
        self._world_size = group.world_size
        self._announcements = operations
        self._operations = Operations(f"{operations.name}-sparse", abort)

    def sum(self, tensor: Tensor, waits: bool, limit: timedelta | None) -> OperationWork:
        """Adds the tensors of all ranks, in place. `waits` and `limit` are those of `Operations.run`."""
        mine = tensor.detach().coalesce()
        all_announced = torch.empty((self._world_size, 2), dtype=torch.int64)

        def announce() -> Started:
            announced = torch.tensor([_MARK, mine.values().shape[0]])
            return [self._groups[0].iall_gather(all_announced, announced)], list

        announcement = self._announcements.run(announce, waits=False, limit=limit)

        def start() -> Started:
            announcement.wait()
            if not torch.all(all_announced[:, 0] == _MARK):
                raise crossrank.MismatchError("all_reduce: only some ranks reduce a sparse tensor")
            counts = all_announced[:, 1].tolist()
            indices = _gathered_rows(self._groups[1], mine.indices().t().contiguous(), counts, limit)
            values = _gathered_rows(self._groups[1], mine.values().contiguous(), counts, limit)
            summed = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()

            def finish() -> list[Tensor]:
                with torch.no_grad():  # a detached sparse tensor would not share its indices
                    tensor.copy_(summed)
                return [tensor]

            return [], finish

        return self._operations.run(start, waits=waits)

    def close(self) -> None:
        """Completes what is in progress, and leaves the groups. Later sums are an error."""
        self._operations.close()
        self._groups = ()


def _gathered_rows(group: crossrank.Collective, rows: Tensor, counts: Sequence[int], limit: timedelta | None) -> Tensor:
    """Returns the rows of all ranks."""
    row_bytes = rows.element_size() * (rows[0].numel() if rows.shape[0] else torch.Size(rows.shape[1:]).numel())
    joined = torch.empty((sum(counts), *rows.shape[1:]), dtype=rows.dtype)
    request = group.iall_gatherv(bytes_of(joined), bytes_of(rows), rows=[count * row_bytes for count in counts])
    if limit is not None:
        request.set_timeout(limit)
    request.wait()
    return joined
