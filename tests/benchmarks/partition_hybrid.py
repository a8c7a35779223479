#!/usr/bin/env python3
"""Hybrid plans (stages x replicas x recompute) of Piper's instances against their published optima.

  partition_hybrid.py [--autopart PROGRAM] [--max-gap 0.001] [--max-s 0.5]

Piper (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021) published 22 rows of three models; they and
their scorer are in ../shared (loudly skipped where that is missing). Each row prints the time per
sample that the scorer finds, its ratio to the published optimum, whether ours is proven, and the
wall time with start and parsing. Ends with 1 if a row is not valid, worse than --max-gap allows, or
slower than --max-s.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
BANDWIDTH = "26843545600"  # 25 GiB/s, of all published rows
GIB = 2**30


def published_rows(readme: Path) -> list[tuple[str, str, float, str, float]]:
    """Instance, devices, GiB a device, micro-batches, optimal time per sample."""
    rows = []
    for line in readme.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0] in ("bert32a100", "gnmt", "resnet") and len(cells) == 7:
            rows.append((cells[0], cells[1], float(cells[2]), cells[3], float(cells[4])))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "build" / "release" / "runtime" / "cli" / "autopart"
    parser.add_argument("--autopart", default=str(default))
    parser.add_argument("--max-gap", type=float, default=0.001)
    parser.add_argument("--max-s", type=float, default=0.5)
    args = parser.parse_args()

    data = SHARED / "partition-data"
    if not data.is_dir():
        print(f"SKIPPED: {data} is not here")
        return 0
    bad = 0
    print(f"{'instance':12} devices   GiB  time per sample   ratio  optimal        s")
    for name, devices, gib, micro_batches, optimum in published_rows(data / "README.md"):
        instance = next((data / "piper" / "inputs").glob(f"{name}*"))
        memory = str(int(gib * GIB))
        with tempfile.TemporaryDirectory() as folder:
            plan = f"{folder}/plan.json"
            command = [args.autopart, "partition", str(instance), "-o", plan, "--format", "json"]
            command += ["--devices", devices, "--memory", memory]
            command += ["--micro-batches", micro_batches, "--bandwidth", BANDWIDTH]
            start = time.perf_counter()
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds = time.perf_counter() - start
            if ran.returncode != 0:
                print(f"{name:12} {devices:>7} {gib:5g}  {ran.stderr.strip()}")
                bad += 1
                continue
            score = [sys.executable, str(SHARED / "tools" / "score_piper.py"), str(instance), plan]
            score += ["--devices", devices, "--mem", memory, "--mbs", micro_batches]
            score += ["--bandwidth", BANDWIDTH]
            scored = subprocess.run(score, capture_output=True, text=True, check=False).stdout
        valid = re.search(r"^valid True tps ([0-9.e+-]+)", scored, re.MULTILINE)
        value = float(valid.group(1)) if valid else float("inf")
        optimal = json.loads(ran.stdout)["optimal"]
        fine = value <= optimum * (1 + args.max_gap) and seconds <= args.max_s
        bad += not fine
        print(
            f"{name:12} {devices:>7} {gib:5g} {value:16.9g} {value / optimum:7.5f}"
            f"  {'yes' if optimal else 'no':7} {seconds:8.3f}{'' if fine else '  <- missed'}"
        )
    print("all rows as good and as fast as asked" if bad == 0 else f"{bad} rows fall short")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
