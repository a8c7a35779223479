#!/usr/bin/env python3
"""METIS alone with push repair against ours, on public graphs and two made or converted ones.

  partition_against_metis.py [--program PATH]

Collects the graphs for the program of the same name (see its head for what the table holds): the 16
published ones, those from PipeDream's profiles, a transformer of 9,797 nodes, dagP's 2mm and three
sparse linear algebra graphs, where ../shared is present; else those in tests/data.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
DATA = SHARED / "partition-data"


def convert(folder: Path, *arguments: str) -> str:
    target = folder / f"{arguments[0]}_{Path(arguments[1]).name.split('.')[0]}.json"
    head, tail = arguments[:2], arguments[2:]
    source = [] if head[0] == "transformer" else [head[1]]
    command = [sys.executable, str(SHARED / "tools" / "convert_graphs.py"), head[0], *source]
    subprocess.run([*command, str(target), *tail], check=True, stdout=subprocess.DEVNULL)
    return str(target)


def graphs(folder: Path) -> list[str]:
    if not DATA.exists():
        print(f"SKIPPED: {DATA} is missing, so only the graphs in tests/data run", flush=True)
        return []
    paths = [str(p) for p in sorted((DATA / "dnn-partitioning/throughput-inputs").glob("*/*.json"))]
    paths += [str(p) for p in sorted((DATA / "converted").glob("*.json.gz"))]
    size = ("--layers", "64", "--heads", "16", "--k", "64", "--mem", "1e12")
    paths.append(convert(folder, "transformer", "9797", *size))
    paths.append(convert(folder, "dot", str(DATA / "dagp/2mm_10_20_30_40.dot.gz"), "--k", "16"))
    for name in ("CG_N30_K30_nzP0d1", "exp_N50_K25_nzP0d1", "simple_pagerank_gyro_m"):
        paths.append(convert(folder, "hyperdag", str(DATA / f"hyperdag-db/{name}.txt"), "--k", "8"))
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "build/release/tests/benchmarks/partition_against_metis"
    parser.add_argument("--program", default=str(default))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([args.program, *graphs(Path(folder))], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
