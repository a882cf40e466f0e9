"""Measures the Python package beside its peers. Usage: compare.py [--quick] [--ranks "2 4"] [--launches N] [--place DIR]
[--command CROSSRANK --programs DIR] [--out RESULTS.json]

Contestants run one after the other, in several launches; a ratio is the median over launches of the peer's median time by
ours. `--programs` is the folder of the C++ benchmarks, with which the gather is compared as well. A peer that is not
installed is skipped, with the reason. Exits with 1 if one of our own programs fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
QUEUE_SIZES = [64, 1 << 20]
GATHER_SIZES = [4 << 10, 1 << 20, 16 << 20, 128 << 20]
PEERS = {"torch": "gloo", "queue": "vllm", "gather": "modelopt", "load": "safetensors"}

# The time of each contestant by launch, for each (what, variant, ranks, bytes).
Times = dict[tuple[str, str, int, int], dict[str, list[float]]]


def run_all(commands: list[list[str]]) -> str:
    """Runs programs at the same time. Returns why they failed, or an empty text."""
    processes = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in commands]
    failed = ""
    try:
        for process in processes:
            output, _ = process.communicate(timeout=600)
            if process.returncode != 0:
                failed = output.strip().splitlines()[-1] if output.strip() else f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        failed = "no end after 600 s"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return failed


def launch(what: str, who: str, ranks: int, sizes: list[int], quick: bool, folder: Path) -> list[dict]:
    """Runs the ranks of one contestant and returns its rows; none when it failed."""
    out, store = folder / "rows", folder / "store"
    for old in (out, store):
        old.unlink(missing_ok=True)
    program = [sys.executable, str(Path(__file__).with_name("ranks.py")), what, who]
    tail = [str(ranks), str(store), str(out), "1" if quick else "0", *map(str, sizes)]
    failed = run_all([[*program, str(rank), *tail] for rank in range(ranks)])
    if failed:
        print(f"skipped: {who} with {ranks} ranks failed: {failed}", file=sys.stderr)
        return []
    return [json.loads(line) for line in out.read_text().splitlines()]


def launch_native_gather(arguments: argparse.Namespace, ranks: int, sizes: list[int], folder: Path) -> list[dict]:
    """Runs the gather of the C++ benchmarks and returns rows with the names of ours."""
    out = folder / "native"
    out.unlink(missing_ok=True)
    program = [arguments.command, "run", "-n", str(ranks), "--no-prefix", "--", f"{arguments.programs}/bench_rank_gather"]
    quick = ["--quick"] if arguments.quick else []
    failed = run_all([[*program, "--out", str(out), *quick, "--", *map(str, sizes)]])
    if failed:
        print(f"skipped: the gather of the C++ benchmarks failed: {failed}", file=sys.stderr)
        return []
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return [
        {"what": "gather", "who": "c++", "variant": "get_tensors_parallel", "ranks": ranks, "bytes": row["bytes"],
         "median_us": row["median_us"]}
        for row in rows
        if row["variant"] == "warm" and not row["reads"] and row.get("rank", 0) == 0
    ]  # fmt: skip


def measure_load(arguments: argparse.Namespace, folder: Path) -> list[dict]:
    """Measures the loading of a checkpoint by crossrank and by safetensors, each in a fresh process."""
    rows = []
    place = Path(arguments.place or folder)
    program = [sys.executable, str(Path(__file__).with_name("load.py"))]
    with tempfile.TemporaryDirectory(dir=place) as model:
        size = (1 if arguments.quick else 4) << 30
        failed = run_all([[*program, "make", model, str(size)]])
        for who in ("crossrank", "safetensors"):
            out = folder / "load"
            out.unlink(missing_ok=True)
            failed = failed or run_all([[*program, who, model, str(out)]])
            if failed:
                print(f"skipped: loading by {who} failed: {failed}", file=sys.stderr)
                return rows
            rows += [json.loads(line) for line in out.read_text().splitlines()]
    return rows


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[list[dict], bool]:
    """Returns the rows of all launches, and whether all of ours succeeded."""
    rows: list[dict] = []
    ours = True
    for number in range(arguments.launches or (2 if arguments.quick else 5)):
        rows += [{**row, "launch": number} for row in measure_load(arguments, folder)]
        for ranks in map(int, arguments.ranks.split()):
            for what, sizes in (("torch", SIZES), ("queue", QUEUE_SIZES), ("gather", GATHER_SIZES)):
                if arguments.quick:
                    sizes = [size for size in sizes if size <= 16 << 20]
                for who in ("crossrank", PEERS[what]):
                    found = launch(what, who, ranks, sizes, arguments.quick, folder)
                    ours = ours and not (who == "crossrank" and not found)
                    rows += [{**row, "launch": number} for row in found]
                if what == "gather" and arguments.programs:
                    found = launch_native_gather(arguments, ranks, sizes, folder)
                    rows += [{**row, "launch": number} for row in found]
    return rows, ours


def size_text(size: int) -> str:
    """Returns a size in the largest unit that it reaches."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def print_table(times: Times) -> None:
    """Prints one row for each call and peer."""
    print("| call | ranks | bytes | crossrank | peer | ratio |\n|---|---|---|---|---|---|")
    for (_, variant, ranks, size), by_who in times.items():
        ours = by_who.get("crossrank", [])
        own = f"{statistics.median(ours):,.1f} us" if ours else "failed"
        for peer, theirs in by_who.items():
            if peer == "crossrank" or not ours:
                continue
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=False))
            print(
                f"| {variant} | {ranks} | {size_text(size)} | {own} "
                f"| {peer} {statistics.median(theirs):,.1f} us | {ratio:.2f} |"
            )
        if len(by_who) == 1:
            print(f"| {variant} | {ranks} | {size_text(size)} | {own} | - | - |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", default="2 4")
    parser.add_argument("--launches", type=int, default=0)
    parser.add_argument("--place", default="")
    parser.add_argument("--command", default="crossrank")
    parser.add_argument("--programs", default="")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, ours = measure(arguments, Path(folder))
    times: Times = {}
    for row in rows:
        key = (row["what"], row["variant"], row["ranks"], row["bytes"])
        times.setdefault(key, {}).setdefault(row["who"], []).append(row["median_us"])
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(rows, indent=1) + "\n")
    print_table(times)
    sys.exit(0 if ours else 1)


if __name__ == "__main__":
    main()
