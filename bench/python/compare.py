"""Measures the Python package beside gloo, vLLM's queue and ModelOpt's gather. Usage: compare.py [--quick] [--ranks "2 4"]

Contestants run one after the other, in several launches; a ratio is the median over launches of the peer's median time by
ours. A peer that is not installed is skipped, with the reason. Exits with 1 if one of our own programs fails.
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
GATHER_SIZES = [4 << 10, 1 << 20, 16 << 20]
PEERS = {"torch": "gloo", "queue": "vllm", "gather": "modelopt"}


def launch(what: str, who: str, ranks: int, sizes: list[int], quick: bool, folder: Path, number: int) -> list[dict]:
    """Runs the ranks of one contestant and returns its rows; none when it failed."""
    name = f"{what}-{who}-{ranks}-{number}"
    out, store = folder / f"{name}.json", folder / f"{name}.store"
    program = [sys.executable, str(Path(__file__).with_name("ranks.py")), what, who]
    tail = [str(ranks), str(store), str(out), "1" if quick else "0", *map(str, sizes)]
    processes = [
        subprocess.Popen([*program, str(rank), *tail], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)
    ]
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
    if failed:
        print(f"skipped: {who} with {ranks} ranks failed: {failed}", file=sys.stderr)
        return []
    return [json.loads(line) for line in out.read_text().splitlines()]


def size_text(size: int) -> str:
    """Returns a size in the largest unit that divides it."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", default="2 4")
    parser.add_argument("--launches", type=int, default=0)
    arguments = parser.parse_args()
    launches = arguments.launches or (2 if arguments.quick else 5)
    times: dict[tuple, dict[str, list[float]]] = {}
    ours_failed = False
    with tempfile.TemporaryDirectory() as folder:
        for number in range(launches):
            for ranks in map(int, arguments.ranks.split()):
                for what, sizes in (("torch", SIZES), ("queue", QUEUE_SIZES), ("gather", GATHER_SIZES)):
                    if arguments.quick:
                        sizes = [size for size in sizes if size <= 16 << 20]
                    for who in ("crossrank", PEERS[what]):
                        rows = launch(what, who, ranks, sizes, arguments.quick, Path(folder), number)
                        ours_failed |= who == "crossrank" and not rows
                        for row in rows:
                            key = (what, row["variant"], row["ranks"], row["bytes"])
                            times.setdefault(key, {}).setdefault(who, []).append(row["median_us"])
    print("| call | ranks | bytes | crossrank | peer | ratio |\n|---|---|---|---|---|---|")
    for (what, variant, ranks, size), by_who in times.items():
        ours, theirs = by_who.get("crossrank", []), by_who.get(PEERS[what], [])
        peer, ratio = "-", "-"
        if ours and theirs:
            peer = f"{PEERS[what]} {statistics.median(theirs):,.1f} us"
            ratio = f"{statistics.median(b / a for a, b in zip(ours, theirs, strict=False)):.1f}"
        own = f"{statistics.median(ours):,.1f} us" if ours else "failed"
        print(f"| {variant} | {ranks} | {size_text(size)} | {own} | {peer} | {ratio} |")
    sys.exit(1 if ours_failed else 0)


if __name__ == "__main__":
    main()
