"""Runs the benchmarks one after another; ends with the worst exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "release" / "tests" / "benchmarks"


def main() -> int:
    worst = 0
    for title, command in [
        ("shared-memory round trips", [str(BUILD / "transport_latency")]),
        (
            "partitions proven optimal",
            [sys.executable, str(HERE / "partition_optimal.py")],
        ),
        ("gaps where no proof is", [sys.executable, str(HERE / "partition_gap.py")]),
        ("hybrid plans of Piper's rows", [sys.executable, str(HERE / "partition_hybrid.py")]),
        ("recompute chosen per stage", [str(BUILD / "recompute_choice")]),
        (
            "METIS alone against ours",
            [sys.executable, str(HERE / "partition_against_metis.py")],
        ),
        (
            "partitions of up to a million nodes",
            [sys.executable, str(HERE / "partition_scale.py")],
        ),
        (
            "GPT-3 from its configuration to a plan",
            [sys.executable, str(HERE / "capture_gpt3.py")],
        ),
        ("overhead of a step", [sys.executable, str(HERE / "step_overhead.py")]),
    ]:
        print(f"\n== {title}", flush=True)
        worst = max(worst, subprocess.run(command, check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
