#!/usr/bin/env python3
"""Public graphs whose optimum is known: value at the optimum, proven, and within the time.

  partition_optimal.py [--autopart PROGRAM] [--set published,acc,tight,hard,small]

A row is a graph of the dnn-partitioning form with its devices, CPUs and memory set. Sets:
published (16 graphs as they were published), acc (2 to 16 accelerators, no CPU) and tight (memory
1.05 or 1.25 of the even share): the reference table in ../shared, loudly skipped where that is
missing. hard: graphs from PipeDream's profiles at 2 to 16 stages, without a reference: value and
bound have to meet, with --time-limit 10. small: the graphs in tests/data, always.

Wall times include process start and reading. Ends with 1 if a row is above its reference, is not
proven, or takes too long; times are judged with --strict-time only, for they are the machine's too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
SECONDS = {"published": 0.5, "acc": 1.0, "tight": 1.0, "hard": 10.0, "small": 0.5}
HARD = ["densenet121", "resnet101", "gnmt_large", "inception_v3"]
# The graphs in tests/data at their own k, as their README says.
SMALL = {
    "bert24_inference.json": 17.78990625,
    "bert24_training.json.gz": 41.7458125,
    "gnmt_inference.json.gz": 32.9106582,
    "resnet50_inference.json.gz": 33.77466602,
}


@dataclass
class Row:
    kind: str
    path: Path
    changes: dict[str, float]
    reference: float | None


def rows_of(kinds: list[str]) -> list[Row]:
    rows: list[Row] = []
    table = SHARED / "tools" / "partition_reference.json"
    data = SHARED / "partition-data"
    if table.exists():
        for row in json.loads(table.read_text())["rows"]:
            changes = {
                "maxFPGAs": row["k"],
                "maxCPUs": row["cpus"],
                "maxSizePerFPGA": row["mem"],
            }
            rows.append(Row(row["set"], data / row["file"], changes, row["reference"]))
        for name in HARD:
            for k in (2, 4, 8, 16):
                path = data / "converted" / f"pd_{name}.json.gz"
                rows.append(Row("hard", path, {"maxFPGAs": k}, None))
    elif set(kinds) - {"small"}:
        print(f"SKIPPED: {table} is missing, so only the graphs in tests/data run")
    for name, optimum in SMALL.items():
        rows.append(Row("small", ROOT / "tests/data/dnn-partitioning" / name, {}, optimum))
    return [row for row in rows if row.kind in kinds]


def load(path: Path) -> dict:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)


def solve(program: str, row: Row, folder: Path) -> tuple[dict, float]:
    instance = load(row.path) | row.changes
    path = folder / "instance.json"
    path.write_text(json.dumps(instance))
    command = [program, "partition", str(path), "--format", "json"]
    if row.kind == "hard":
        command += ["--time-limit", "10"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout), seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--autopart", default=str(ROOT / "build/release/runtime/cli/autopart"))
    parser.add_argument("--set", default="published,acc,tight,hard,small")
    parser.add_argument("--strict-time", action="store_true")
    args = parser.parse_args()

    bad = 0
    totals: dict[str, list[float]] = {}
    print(f"{'set':<10}{'graph':<44}{'k':>3}{'value':>14}{'bound':>14}{'proven':>8}{'s':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows_of(args.set.split(",")):
            result, seconds = solve(args.autopart, row, Path(folder))
            above = row.reference is not None and result["value"] > row.reference * (1 + 1e-6)
            slow = seconds > SECONDS[row.kind]
            wrong = above or not result["optimal"] or (slow and args.strict_time)
            bad += wrong
            totals.setdefault(row.kind, []).append(seconds)
            name = f"{row.path.parent.name}/{row.path.name}"
            notes = ["above the reference"] * above + ["slow"] * slow
            print(
                f"{row.kind:<10}{name[:43]:<44}{row.changes.get('maxFPGAs', ''):>3}"
                f"{result['value']:>14.8g}{result['bound']:>14.8g}"
                f"{'yes' if result['optimal'] else 'NO':>8}{seconds:>8.3f}  {', '.join(notes)}",
                flush=True,
            )
    for kind, times in totals.items():
        mean = math.exp(sum(map(math.log, times)) / len(times))
        print(
            f"{kind}: {len(times)} rows, seconds: geometric mean {mean:.3f}, most {max(times):.3f}"
        )
    print(f"{bad} rows fall short")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
