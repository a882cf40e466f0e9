"""Runs PyTorch's own suite of `torch.distributed`, from its wheel, with one backend.

Usage: torch_suite.py BACKEND [--ranks 3] [--match TEXT] [--out RESULTS.json]

Prints one line for each test that failed, then how many passed, failed and were skipped. RESULTS.json gets the outcome and the
reason of every test. Exits with 1 if a test failed.

The suite restricts many tests to gloo or MPI by name, and others to backends of a list. For the backend crossrank this program
replaces both, so that the same tests run; it changes nothing else of the suite.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import types
import unittest
from collections import Counter
from typing import Any

# Text of the suite, and what the backend crossrank runs instead.
ADAPTATIONS = [
    ('BACKEND != "gloo"', 'BACKEND not in ("gloo", "crossrank")'),
    ('BACKEND == "gloo"', 'BACKEND in ("gloo", "crossrank")'),
    ('require_backend_is_available({"gloo"})', 'require_backend_is_available({"gloo", "crossrank"})'),
    ('BACKEND != "mpi"', 'BACKEND not in ("mpi", "crossrank")'),
]


def load_suite(backend: str) -> Any:
    """Returns the module of the suite, adapted to the backend."""
    from torch.testing._internal.common_distributed import DistTestCases

    spec = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test")
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    if backend == "crossrank":
        import crossrank.torch  # noqa: F401 - registers the backend

        for feature in ("ddp", "gpu", "subgroup", "plugin"):
            DistTestCases.backend_feature[feature].add(backend)
        for text, replacement in ADAPTATIONS:
            assert text in source, text
            source = source.replace(text, replacement)
    module = types.ModuleType("distributed_test")
    sys.modules["distributed_test"] = module
    exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module


class Outcomes(unittest.TestResult):
    """Collects the outcome of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []

    def _add(self, test: unittest.TestCase, outcome: str, reason: str = "") -> None:
        self.rows.append({"test": test.id().rsplit(".", 1)[-1], "outcome": outcome, "reason": reason})
        if outcome == "failed":
            print(f"failed: {self.rows[-1]['test']}\n{reason}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--match", default="")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(BACKEND=arguments.backend, WORLD_SIZE=str(arguments.ranks), TEMP_DIR=folder, OMP_NUM_THREADS="1")
        import torch

        torch.set_num_threads(1)
        suite = load_suite(arguments.backend)

        class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
            """The suite with ranks that are forked, because a fresh process imports torch for seconds."""

            def setUp(self) -> None:
                super().setUp()
                self._start_processes(torch.multiprocessing.get_context("fork").Process)

        outcomes = Outcomes()
        names = [name for name in unittest.TestLoader().getTestCaseNames(Suite) if arguments.match in name]
        for name in names:
            Suite(name).run(outcomes)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(outcomes.rows, file, indent=1)
    counts = Counter(row["outcome"] for row in outcomes.rows)
    print(f"{arguments.backend}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
