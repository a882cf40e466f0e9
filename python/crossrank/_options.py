"""The options of checkpoint jobs. An option that is left out, or None, has the library's default."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypedDict

Format = Literal["safetensors", "torch", "images"]
ReadBack = Literal["all", "none"]
FusedLayout = Literal["automatic", "per_rank", "plain"]


class PlanOptions(TypedDict, total=False):
    """What the input is, and how it is merged. Without an option the files tell."""

    rules: str | os.PathLike[str] | None
    """A JSON file of rules."""
    source_tp: int | None
    """The tensor-parallel size."""
    pp: int | None
    """The pipeline size."""
    ep: int | None
    """The expert-parallel size."""
    moe_ep: int | None
    """The number of groups of experts among the tensor-parallel ranks. In `split` it is that of the result."""
    pattern: str | None
    """The file names, with {rank}, {tp}, {pp} and {ep} in place of numbers."""
    policy: Literal["exact", "rescale", "requantize"] | None
    """What to do when the ranks' scales of a layer differ. The default "exact" is an error. "rescale" changes the stored values
    to a common scale, and "requantize" also those of packed blocks."""
    model_key: str | None
    """The key of the model in torch archives, or the first part of the names in distributed checkpoints; "." for everything."""
    crc: Literal["require", "warn", "ignore"] | None
    """What to do when a checksum in a torch archive does not match. The default "require" is an error."""
    extra_globals: Sequence[str] | None
    """More classes that torch archives may mention, as "module.name". None is ever called."""
    fused_layout: FusedLayout | None
    """How fused layers such as gate_up_proj were sharded."""


class WritingOptions(TypedDict, total=False):
    """How files are written."""

    force: bool | None
    """Whether to replace an existing checkpoint."""
    threads: int | None
    """The threads of this rank. By default two for each CPU of its share, at most 4."""
    read_back: ReadBack | None
    """What is read and compared after writing. By default "all"."""


class JobOptions(PlanOptions, WritingOptions, total=False):
    """The options of a plan and of writing."""

    resume: bool | None
    """Whether to continue from the files that a killed job had finished."""


class ConsolidateOptions(JobOptions, total=False):
    """The options of `consolidate`."""

    max_shard_bytes: int | None
    """The largest size of an output file. A larger tensor gets a file of its own. By default 5 GB."""
    single_file: bool | None
    """Whether to write one file, whatever its size."""
    format: Format | None
    """The file format of the result."""


class SplitOptions(JobOptions, total=False):
    """The options of `split`."""

    source_moe_ep: int | None
    """`moe_ep` of the input."""
    format: Format | None
    """The file format of the result."""


class ConvertOptions(JobOptions, total=False):
    """The options of `convert`: those of `consolidate`, or with `tp` those of `split`."""

    max_shard_bytes: int | None
    """As in `ConsolidateOptions`."""
    single_file: bool | None
    """As in `ConsolidateOptions`."""
    source_moe_ep: int | None
    """As in `SplitOptions`."""


class VerifyOptions(PlanOptions, total=False):
    """The options of `verify`."""

    numbers: bool | None
    """Whether to read all data and look for NaN and infinity."""
    checksums: bool | None
    """Whether to compare data with its checksums, where files have them. By default yes."""
    threads: int | None
    """The threads of this rank."""


class SaveOptions(WritingOptions, total=False):
    """The options of `save_sharded`."""

    format: Format | None
    """The file format of the result."""
