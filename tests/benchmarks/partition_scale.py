#!/usr/bin/env python3
"""Time, memory and quality of `autopart partition` on made transformers of 10^4 to 10^6 nodes.

  partition_scale.py [--autopart PROGRAM] [--largest NODES] [--bounds] [--strict-time]
                     [--keep FOLDER]

Prints a row for each graph: wall time with process start, parsing and writing; processor time; peak
memory; value and certified bound. Then the exponent p of time ~ nodes^p, by least squares over the
logarithms, of the processor time (wall time on a busy machine is not the program's). With --bounds
the program runs again with ten times the time allowed, for a better bound. Each answer is checked
by ../shared/tools/score_partition.py. Expected on two free cores: at most 0.3, 3 and 30 s, 4 GiB,
gaps of 4, 6 and 10 %, exponent 1.15. Ends with 1 where an answer is not valid, or memory, gap (with
--bounds) or exponent are above; times are judged with --strict-time only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT.parent / "shared" / "tools"
# layers, stages, seconds allowed, gap allowed
GRAPHS = [(64, 64, 0.3, 0.04), (653, 256, 3.0, 0.06), (6536, 256, 30.0, 0.10)]
NODES = {64: 9_797, 653: 99_914, 6536: 1_000_013}


def make(folder: Path, layers: int, stages: int) -> Path:
    path = folder / f"transformer_{layers}.json"
    if not path.exists():
        command = [sys.executable, str(TOOLS / "convert_graphs.py"), "transformer", str(path)]
        command += ["--layers", str(layers), "--heads", "16", "--mem", "1e12", "--k", str(stages)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def run(command: list[str]) -> tuple[dict, float, float, float]:
    """Its JSON, wall seconds, processor seconds, peak GiB."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    wall = time.perf_counter() - start
    return json.loads(out), wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def is_valid(graph: Path, answer: Path, value: float) -> bool:
    command = [sys.executable, str(TOOLS / "score_partition.py"), str(graph), str(answer)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"valid True maxLoad ([0-9.eE+-]+)", done.stdout)
    return found is not None and math.isclose(float(found.group(1)), value, rel_tol=1e-6)


def exponent(nodes: list[int], seconds: list[float]) -> float:
    x = [math.log(n) for n in nodes]
    y = [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--autopart", default=str(ROOT / "build/release/runtime/cli/autopart"))
    parser.add_argument("--largest", type=int, default=1_000_013, help="leave out larger graphs")
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--strict-time", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for the graphs, to be used again")
    args = parser.parse_args()
    if not TOOLS.exists():
        print(f"SKIPPED: {TOOLS} is missing, so there is nothing that makes the graphs")
        return 0

    bad = 0
    nodes: list[int] = []
    seconds: list[float] = []
    print(f"{'nodes':>9}{'stages':>8}{'wall s':>9}{'cpu s':>9}{'GiB':>7}", end="")
    print(f"{'value':>12}{'bound':>12}{'gap':>8}  valid")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        answer = Path(temporary) / "answer.json"
        for layers, stages, allowed, allowed_gap in GRAPHS:
            if NODES[layers] > args.largest:
                continue
            graph = make(folder, layers, stages)
            command = [args.autopart, "partition", str(graph), "-o", str(answer)]
            command += ["--format", "json"]
            result, wall, cpu, peak = run(command)
            valid = is_valid(graph, answer, result["value"])
            if args.bounds:
                longer, *_ = run([*command, "--time-limit", str(10 * allowed)])
                result["bound"] = max(result["bound"], longer["bound"])
            gap = result["value"] / result["bound"] - 1
            nodes.append(NODES[layers])
            seconds.append(cpu)
            slow, wide = wall > allowed, gap > allowed_gap
            bad += not valid or peak > 4 or (slow and args.strict_time) or (wide and args.bounds)
            print(
                f"{NODES[layers]:>9}{stages:>8}{wall:>9.2f}{cpu:>9.2f}{peak:>7.2f}"
                f"{result['value']:>12.6g}{result['bound']:>12.6g}{100 * gap:>7.2f}%"
                f"  {'yes' if valid else 'NO'}{'  slow' * slow}{'  wide' * wide}",
                flush=True,
            )
    if len(nodes) > 1:
        fitted = exponent(nodes, seconds)
        bad += fitted > 1.15
        print(f"cpu seconds grow as nodes^{fitted:.3f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
