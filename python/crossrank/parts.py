"""Merges in parts that a scheduler runs on many hosts."""

from __future__ import annotations

import os
from typing import Literal, Self

from . import _core
from ._options import Format, ReadBack
from .checkpoint import MergePlan, Path, Summary
from .progress import Display, OnProgress


class PartsPlan:
    """A merge in parts that need no connection with each other.

    A scheduler runs `consolidate_part` for each part, on any host that sees the storage. `finish_parts` publishes the result.

    >>> plan = crossrank.PartsPlan(crossrank.MergePlan("shards/"), "model/", parts=16)
    >>> plan.save("plan.json")
    """

    __slots__ = ("_native",)

    def __init__(
        self,
        plan: MergePlan,
        out: Path,
        *,
        parts: int,
        max_shard_bytes: int = 5_000_000_000,
        single_file: bool = False,
        format: Format = "safetensors",
        force: bool = False,
    ) -> None:
        """Divides the output files of a merge among parts, and changes nothing."""
        options = {
            "parts": parts, "max_shard_bytes": max_shard_bytes, "single_file": single_file, "format": format, "force": force,
        }  # fmt: skip
        self._native = _core.make_parts(plan._native, os.fspath(out), options)

    @classmethod
    def load(cls, file: Path) -> Self:
        """Returns the plan that `save` wrote. Opens no inputs.

        >>> plan = crossrank.PartsPlan.load("plan.json")
        """
        plan = cls.__new__(cls)
        plan._native = _core.load_parts(os.fspath(file))
        return plan

    def save(self, file: Path) -> None:
        """Makes the folder for the parts in the output, and writes the plan to a file.

        >>> plan.save("plan.json")
        """
        self._native.save(os.fspath(file))

    @property
    def parts(self) -> int:
        """The number of parts."""
        return self._native.parts()

    @property
    def out(self) -> str:
        """The output directory as an absolute path."""
        return os.fspath(self._native.out())

    def files(self, part: int) -> list[str]:
        """Returns the names of the files of one part.

        >>> plan.files(0)
        """
        return self._native.files(part)

    def bytes(self, part: int) -> int:
        """Returns the size of the files of one part.

        >>> plan.bytes(0)
        """
        return self._native.bytes(part)

    def missing(self) -> list[int]:
        """Returns the parts that are missing or incomplete; none after they were published. Reads sizes and records, not data.

        >>> plan.missing()
        """
        return self._native.missing()


def part_from_environment(plan: PartsPlan) -> int:
    """Returns the part that Slurm, Kubernetes or torchrun gave this process.

    `UsageError` without the variable of any of them, and when the scheduler has another number of tasks than the plan parts.

    >>> part = crossrank.part_from_environment(plan)
    """
    return _core.part_from_environment(plan._native)


def consolidate_part(
    plan: PartsPlan,
    part: int | None = None,
    *,
    threads: int = 0,
    read_back: ReadBack = "all",
    progress: bool | OnProgress = False,
) -> Summary:
    """Writes the files of one part; without `part` of the one that the scheduler gave this process. Local.

    Any host may run a part again: complete files stay. By default a process has two threads per CPU, at most 4.

    >>> crossrank.consolidate_part(crossrank.PartsPlan.load("plan.json"))
    """
    number = part_from_environment(plan) if part is None else part
    options = {"threads": threads, "read_back": read_back}
    with Display(progress) as display:
        return Summary(**_core.consolidate_part(plan._native, number, display.report, options))


def finish_parts(
    plan: PartsPlan,
    *,
    force: bool = False,
    check: Literal["changed", "all", "none"] = "changed",
    dry_run: bool = False,
    threads: int = 0,
    progress: bool | OnProgress = False,
) -> Summary:
    """Publishes the result of all parts. Local.

    `check` says which files are read before: those that have changed since their part read them back, all, or none.
    `dry_run` checks everything, and publishes and changes nothing.
    `FormatError` names the parts that are missing or damaged.

    >>> crossrank.finish_parts(crossrank.PartsPlan.load("plan.json"))
    """
    options = {"force": force, "check": check, "dry_run": dry_run, "threads": threads}
    with Display(progress) as display:
        return Summary(**_core.finish_parts(plan._native, display.report, options))
