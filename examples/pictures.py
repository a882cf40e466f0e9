"""Draws a checkpoint as a table, and the calls of a job as a timeline. Usage:

pictures.py table CHECKPOINT OUT.svg     dtype and shape of each tensor of a file or directory
pictures.py timeline PID OUT.svg         the last calls of each rank of a running job, and how long they waited
crossrank run -n 3 -- pictures.py demo FOLDER    gathers the layers of a small model, and draws both in FOLDER
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from html import escape
from pathlib import Path

import crossrank

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2", "#ff9da7", "#9c755f"]


def svg(width: float, height: float, shapes: list[str]) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>', *shapes, "</svg>\n"])


def xml(words: str) -> str:
    return escape(NOT_IN_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), words))


def text(x: float, y: float, words: str, colour: str = "black", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{xml(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}"><title>{xml(title)}</title></rect>'


def table(tensors: list[dict]) -> str:
    """Returns a table with one row for each kind of tensor and one column for each layer."""
    rows: dict[str, dict[int, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for tensor in tensors:
        parts = tensor["name"].split(".")
        place = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
        layer = 0 if place is None else int(parts[place])
        kind = ".".join("*" if part.isdecimal() else part for part in parts)  # experts of a layer share a row, too
        rows[kind][layer].append(tensor)
    layers = sorted({layer for row in rows.values() for layer in row})
    dtypes = sorted({tensor["dtype"] for tensor in tensors})
    colours = {dtype: COLOURS[place % len(COLOURS)] for place, dtype in enumerate(dtypes)}
    names, top, cell = 20 + 7 * max(map(len, rows), default=0), 60, 24
    shapes_of = {kind: {str(tensor["shape"]) for cells in row.values() for tensor in cells} for kind, row in rows.items()}
    words = {kind: " ".join(sorted(these)) if len(these) < 3 else f"{len(these)} shapes" for kind, these in shapes_of.items()}
    left = names + 20 + 7 * max(map(len, words.values()), default=0)
    shapes = []
    for place, dtype in enumerate(dtypes):
        shapes += [box(10 + 110 * place, 10, 14, 14, colours[dtype], dtype), text(30 + 110 * place, 22, dtype)]
    shapes += [text(left + cell * place + 10, top - 8, str(layer), anchor="middle") for place, layer in enumerate(layers)]
    for line, (kind, row) in enumerate(rows.items()):
        y = top + 22 * line
        shapes += [text(10, y + 15, kind), text(names, y + 15, words[kind])]
        for place, layer in enumerate(layers):
            for tensor in row[layer][:1] if layer in row else []:
                title = f"{tensor['name']}: {tensor['dtype']} {tensor['shape']}, {tensor['bytes']} bytes"
                more = f", and {len(row[layer]) - 1} more" if len(row[layer]) > 1 else ""
                shapes.append(box(left + cell * place, y, 20, 18, colours[tensor["dtype"]], title + more))
    return svg(max(left + cell * len(layers) + 10, 30 + 110 * len(dtypes)), top + 22 * len(rows) + 10, shapes)


def timeline(job: dict) -> str:
    """Returns a line for each rank, with a bar from its call until the last rank has made the same call.

    The flight recorder notes the time of a call in tenths of a second.
    """
    calls = defaultdict(dict)  # (group, round) -> rank -> seconds before now, and the name
    for rank in job["ranks"]:
        for call in rank["operations"]:
            calls[call["group"], call["round"]][rank["rank"]] = (call["age_s"], call["name"])
    sizes = {group["name"]: len(group["ranks"]) for group in job["groups"]}
    oldest = max((age for ranks in calls.values() for age, _ in ranks.values()), default=0.0)
    names = sorted({name for ranks in calls.values() for _, name in ranks.values()})
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    left, top, scale = 80, 50, 800 / max(oldest, 0.1)
    lines = {rank["rank"]: top + 34 * place for place, rank in enumerate(job["ranks"])}
    shapes = []
    for place, name in enumerate(names):
        shapes += [box(10 + 170 * place, 10, 14, 14, colours[name], name), text(30 + 170 * place, 22, name)]
    for rank, y in lines.items():
        shapes += [text(10, y + 16, f"rank {rank}"), box(left, y + 11, 800, 1, "#cccccc", f"rank {rank}")]
    for (group, number), ranks in calls.items():
        waits = len(ranks) < sizes.get(group, 1)
        last = 0.0 if waits else min(age for age, _ in ranks.values())
        for rank, (age, name) in ranks.items():
            title = f"{name} of {group}, round {number}: waited {age - last:.1f} s{' so far' if waits else ''}"
            x = left + (oldest - age) * scale
            shapes.append(box(x, lines[rank], max((age - last) * scale, 3), 22, colours[name], title))
    bottom = top + 34 * len(lines) + 14
    shapes += [text(left, bottom, f"{oldest:.1f} s ago"), text(left + 800, bottom, "now", anchor="end")]
    return svg(max(left + 820, 30 + 170 * len(names)), bottom + 16, shapes)


def draw_table(checkpoint: Path, out: Path) -> None:
    out.write_text(table(crossrank.inspect(checkpoint)["tensors"]), encoding="utf-8")


def draw_timeline(pid: int, out: Path) -> None:
    command = Path(crossrank.__file__).parent / "bin" / "crossrank"
    done = subprocess.run([command, "inspect", "--pid", str(pid), "--last", "64", "--json"], capture_output=True, check=True)
    out.write_text(timeline(json.loads(done.stdout)["jobs"][0]), encoding="utf-8")


def demo(folder: Path) -> None:
    import numpy

    with crossrank.connect(timeout=60) as world:
        weights = {}
        for layer in range(3):
            time.sleep(0.2 * (1 + world.rank))  # each rank loads its slice, some of them slowly
            mine = numpy.full((4, 8), world.rank, numpy.float32)
            with crossrank.get_tensors_parallel(mine, group=world) as slices:
                if slices.is_receiver:
                    weights[f"layers.{layer}.weight"] = crossrank.concat(slices, dim=0)
                    weights[f"layers.{layer}.scale"] = numpy.ones(1, numpy.float16)
        if world.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            crossrank.save(folder / "model.safetensors", weights)
            draw_table(folder, folder / "table.svg")
            draw_timeline(os.getpid(), folder / "timeline.svg")
            print(f"drew {folder / 'table.svg'} and {folder / 'timeline.svg'}")
        world.barrier()  # the other ranks stay until they have been drawn


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["table", checkpoint, out]:
            draw_table(Path(checkpoint), Path(out))
        case ["timeline", pid, out]:
            draw_timeline(int(pid), Path(out))
        case ["demo", folder]:
            demo(Path(folder))
        case _:
            sys.exit(__doc__)
