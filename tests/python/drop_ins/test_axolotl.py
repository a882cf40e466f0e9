"""crossrank.compat.axolotl: values keep their type and digits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from torch_ranks import run_ranks


def helpers(rank: int, size: int) -> None:
    import crossrank.compat.axolotl as axolotl

    assert axolotl.is_distributed() and axolotl.get_world_size() == size
    assert axolotl.is_main_process() == axolotl.is_local_main_process() == (rank == 0)
    # A 32-bit float would turn the first into 16,777,216 and the second into 0.1 with other digits.
    assert axolotl.compute_and_broadcast(lambda: 16_777_217) == 16_777_217
    assert axolotl.compute_and_broadcast(lambda: 0.1) == 0.1
    gathered = axolotl.gather_scalar_from_all_ranks(lambda: 2**60 + rank, size)
    assert gathered == ([2**60 + r for r in range(size)] if rank == 0 else None)
    assert axolotl.reduce_and_broadcast(lambda: rank + 0.5, sum) == sum(r + 0.5 for r in range(size))
    assert axolotl.broadcast_dict({"rank": rank, "list": [1, None, "x"]}) == {"rank": 0, "list": [1, None, "x"]}
    order = []
    with axolotl.zero_first(rank == 0):
        order.append(rank)
    with axolotl.zero_only() as work:
        assert work == (rank == 0)
    axolotl.barrier()


def failure(rank: int, size: int) -> None:
    import crossrank.compat.axolotl as axolotl

    axolotl.barrier()

    def compute() -> int:
        raise KeyError("no such layer")

    with pytest.raises(Exception, match="no such layer"):
        axolotl.compute_and_broadcast(compute)


def failure_in_zero_first(rank: int, size: int) -> None:
    """The text of an exception may have characters that UTF-8 lacks."""
    import crossrank
    import crossrank.compat.axolotl as axolotl

    expected, text = (ValueError, "no file") if rank == 0 else (crossrank.PeerLostError, r"rank 0 failed .* no file \\udcff")
    with pytest.raises(expected, match=text), axolotl.zero_first(rank == 0):
        raise ValueError("no file \udcff")


def slow_function(rank: int, size: int) -> None:
    """A function may take longer than ranks wait for each other elsewhere."""
    import os
    import time

    import crossrank.compat.axolotl as axolotl

    os.environ["CROSSRANK_TIMEOUT"] = "1"

    def slow() -> int:
        if rank == 0:
            time.sleep(2.5)
        return rank

    assert axolotl.compute_and_broadcast(slow) == 0
    assert axolotl.gather_from_all_ranks(slow) == (list(range(size)) if rank == 0 else None)
    assert axolotl.reduce_and_broadcast(slow, sum) == sum(range(size))


def key_that_is_not_a_string(rank: int, size: int) -> None:
    import crossrank
    import crossrank.compat.axolotl as axolotl

    for values in ({1: "x"}, {"inner": {2: "x"}}):
        with pytest.raises(crossrank.UsageError if rank == 0 else crossrank.RemoteError, match="not a str"):
            axolotl.broadcast_dict(values if rank == 0 else {})
    assert axolotl.broadcast_dict({"a": rank}) == {"a": 0}


_ALONE = """
import crossrank.compat.axolotl as axolotl
print(axolotl.is_distributed(), axolotl.is_main_process(), axolotl.is_local_main_process(), axolotl.get_world_size())
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_knows_its_place_before_the_others_exist(rank: int) -> None:
    announced = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    # A rank that connects waits longer than the limit of the process.
    environment = {**os.environ, **announced, "CROSSRANK_CONNECT_TIMEOUT": "300"}
    ended = subprocess.run(
        [sys.executable, "-c", _ALONE], env=environment, timeout=60, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["True", str(rank == 0), str(rank == 0), "2"]


def test_broadcast_dict_refuses_keys_that_are_not_strings() -> None:
    run_ranks(__file__, "key_that_is_not_a_string", 2, backend="gloo")


@pytest.mark.parametrize("scenario", ["helpers", "failure", "failure_in_zero_first", "slow_function"])
def test_scenario(scenario: str) -> None:
    run_ranks(__file__, scenario, 3, backend="gloo")
