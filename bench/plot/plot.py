#!/usr/bin/env python3
"""Draws SVG charts from a results file of bench/run.

Usage: bench/run plot [RESULTS.json] [--out DIR]
  RESULTS.json  output of bench/run (default: the newest file in bench/results)
  --out DIR     where the charts go (default: beside the results)

Draws one chart for each path that the file holds: gather.svg, collectives.svg, queue.svg, calls.svg (barrier and
configs) and consolidate.svg. Prints the name of each chart.
"""

import json
import pathlib
import sys

import svg

PEERS = {
    "mpi_gather": "MPI_Gather + barrier",
    "mpi_barrier": "MPI_Barrier",
    "open_mpi": "Open MPI",
    "modelopt": "ModelOpt (Python)",
    "streaming_limit": "limit of streaming copies",
    "memcpy_limit": "limit of memcpy",
    "boost_queue": "Boost message_queue",
    "iceoryx": "iceoryx",
    "vllm_ring": "vLLM's ring (Python)",
    "cp": "cp and sync",
    "python_merge": "safetensors and torch in Python",
    "dcp_to_torch_save": "torch.distributed.checkpoint in Python",
}
OURS = "crossrank"
ARENA = "crossrank, tensor in the arena"


class Results:
    """The comparisons of one results file."""

    def __init__(self, document):
        self.machine = document.get("machine", {})
        self.rows = document["comparisons"]

    def of(self, path, **wanted):
        return [row for row in self.rows if row["path"] == path and all(row.get(key) == value for key, value in wanted.items())]

    def rank_counts(self, path):
        return sorted({row["ranks"] for row in self.of(path)})

    def where(self):
        """Returns the machine and the date, for the line below a title."""
        machine = self.machine
        parts = [machine.get("cpu"), machine.get("time", "")[:10]]
        return ", ".join(part for part in parts if part)


def spread(row, key):
    return tuple(row[key]) if key in row else None


def peer_name(row):
    """Returns the common name of the peer, with its way of running if that differs from the row's."""
    peer, _, way = row["peer"].partition(" (")
    return PEERS.get(peer, peer) + (f", {way.rstrip(')')}" if way else "")


def points_of(rows, key="ours_us"):
    return sorted({(row["bytes"], row[key]) for row in rows if key in row and row["bytes"] > 0})


def gather_chart(results, ranks):
    panels = []
    for reads, heading in ((False, "the consumer does not read"), (True, "the consumer reads every byte")):
        rows = [row for row in results.of("gather", ranks=ranks, reads=reads) if row["variant"] not in ("cold",)]
        warm = [row for row in rows if row["variant"] == "warm"]
        arena = [row for row in rows if row["variant"] != "warm"]
        series = [(OURS, points_of(warm))]
        if not reads:
            series.append((ARENA, points_of(arena)))
        for peer in ("mpi_gather", "modelopt"):
            series.append((PEERS[peer], points_of([row for row in warm if row["peer"] == peer], "peer_us")))
        series = [(name, points) for name, points in series if len(points) > 1]
        if series:
            panels.append((heading, series))
    if not panels:
        return None
    return svg.line_chart(f"Gather of one tensor, {ranks} ranks on one host", "Median time of one call. " + results.where(), panels, "time of one call")


def collectives_chart(results):
    panels = []
    for ranks in results.rank_counts("collectives"):
        rows = [row for row in results.of("collectives", ranks=ranks, peer="open_mpi") if "ratio" in row and "," not in row["variant"]]
        operations = sorted({row["variant"] for row in rows})
        series = [(name, points_of([row for row in rows if row["variant"] == name], "ratio")) for name in operations]
        if series:
            panels.append((f"{ranks} ranks", series))
    if not panels:
        return None
    return svg.line_chart(
        "Collectives: time of Open MPI divided by time of crossrank",
        "Above 1, crossrank is faster. " + results.where(),
        panels,
        "Open MPI / crossrank",
        y_ticks=[0.5, 1.0, 2.0, 4.0, 8.0],
        y_text=lambda value: f"{svg.number(value)} x",
        baseline=(1.0, "as fast as Open MPI"),
    )


def contestants(rows):
    """One bar for crossrank and one for each peer."""
    bars = [(OURS, rows[0]["ours_us"], spread(rows[0], "ours_range_us"))]
    for row in rows:
        if row["peer"] != "time allowed":
            bars.append((peer_name(row), row.get("peer_us"), spread(row, "peer_range_us")))
    return bars


def queue_chart(results):
    groups = []
    for ranks in results.rank_counts("queue"):
        rows = results.of("queue", ranks=ranks, variant="latency", bytes=64, reads=False)
        if rows:
            groups.append((f"64 B, {ranks} ranks", contestants(rows)))
    return svg.bar_chart("Message queue: latency one way", "Logarithmic axis. " + results.where(), groups) if groups else None


def calls_chart(results):
    groups = []
    for ranks in results.rank_counts("barrier"):
        rows = results.of("barrier", ranks=ranks)
        groups.append((f"barrier, {ranks} ranks", contestants(rows)))
    for ranks in results.rank_counts("configs")[:1]:
        for tensors in sorted({row["bytes"] for row in results.of("configs", ranks=ranks)}):
            rows = results.of("configs", ranks=ranks, bytes=tensors, reads=False)
            if any(row["peer"] != "time allowed" for row in rows):
                groups.append((f"config with {tensors} tensors", contestants(rows)))
    return svg.bar_chart("Barrier, and gather of configs", "Median time of one call, logarithmic axis. " + results.where(), groups) if groups else None


def consolidate_chart(results):
    groups = []
    for variant, ranks, size in dict.fromkeys((row["variant"], row["ranks"], row["bytes"]) for row in results.of("consolidate")):
        rows = results.of("consolidate", variant=variant, ranks=ranks, bytes=size)
        bars = []
        for reads, name in ((True, "crossrank, result read back"), (False, "crossrank, not read back")):
            ours = [row for row in rows if row["reads"] == reads]
            if ours:
                bars.append((name, ours[0]["ours_us"], spread(ours[0], "ours_range_us")))
        for peer in dict.fromkeys(row["peer"] for row in rows):
            row = next(row for row in rows if row["peer"] == peer)
            bars.append((peer_name(row), row.get("peer_us"), spread(row, "peer_range_us")))
        kind, _, cache = variant.partition(", ")
        place = {"warm": "shards in the page cache", "cold": "shards on the disk"}.get(cache, cache)
        groups.append((f"{svg.size_text(size)} of {kind}, {place}, {ranks} process{'es' if ranks > 1 else ''}", bars))
    if not groups:
        return None
    return svg.bar_chart("Merge of 4 tensor-parallel shards into one checkpoint", results.where(), groups, logarithmic=False)


def charts_of(results):
    for ranks in results.rank_counts("gather"):
        yield ("gather" if ranks == 2 else f"gather-{ranks}"), gather_chart(results, ranks)
    yield "collectives", collectives_chart(results)
    yield "queue", queue_chart(results)
    yield "calls", calls_chart(results)
    yield "consolidate", consolidate_chart(results)


def newest_results():
    folder = pathlib.Path(__file__).resolve().parents[1] / "results"
    files = sorted(path for path in folder.glob("*.json") if not path.name.endswith("-micro.json"))
    if not files:
        raise SystemExit(f"bench/run plot: {folder} holds no results. Run bench/run all first, or name a results file.")
    return files[-1]


def main(arguments):
    source = target = None
    while arguments:
        word = arguments.pop(0)
        if word in ("-h", "--help"):
            print(__doc__.strip())
            return 0
        if word == "--out":
            if not arguments:
                raise SystemExit("bench/run plot: --out needs a directory")
            target = pathlib.Path(arguments.pop(0))
        elif word.startswith("-") or source:
            raise SystemExit(f"bench/run plot: unknown argument {word} (see --help)")
        else:
            source = pathlib.Path(word)
    source = source or newest_results()
    target = target or source.parent
    try:
        results = Results(json.loads(source.read_text()))
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"bench/run plot: {source} is not a results file of bench/run: {error!r}")
    target.mkdir(parents=True, exist_ok=True)
    drawn = 0
    for name, chart in charts_of(results):
        if chart:
            (target / f"{name}.svg").write_text(chart)
            print(target / f"{name}.svg")
            drawn += 1
    if not drawn:
        raise SystemExit(f"bench/run plot: {source} holds no comparison that has a chart")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
