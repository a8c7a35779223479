"""GPT-3 175B from its configuration to a plan for 512 A100s: seconds and memory of each part.

The limits are those of a laptop with 2 cores: 60 s and 4 GiB, capture included. Ends with 1 where
one is passed.

    python tests/benchmarks/capture_gpt3.py [--layers 96] [--gpus 512] [--search all|executable]
                                            [--limit 60]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

COMMAND = Path(__file__).resolve().parents[2] / "build" / "release" / "runtime" / "cli" / "autopart"
MEMORY_LIMIT_GIB = 4.0
PATIENCE = 3  # a part is ended at so many times the limit

SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build_model():
    torch.set_default_dtype(torch.bfloat16)
    config = GPT2Config(n_layer={layers}, n_embd=12288, n_head=96, n_positions=2048)
    ids = torch.zeros(1, 2048, dtype=torch.long)
    return GPT2LMHeadModel(config), {{"input_ids": ids, "labels": ids}}, "loss"
"""


@dataclass
class Part:
    name: str
    seconds: float
    peak_gib: float
    status: str  # "" where all is well


def run(name: str, arguments: list[str], folder: Path, deadline: float) -> Part:
    """One command, with the most memory that it held."""
    start = time.monotonic()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [COMMAND, *arguments], cwd=folder, env=environment, stdout=log, stderr=log
        )
        status, usage, code = "", None, None
        while usage is None:
            pid, code, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                usage = used
            elif time.monotonic() - start > deadline and not status:
                status = f"ended after {deadline:.0f} s"
                process.terminate()
            else:
                time.sleep(0.01)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode != 0 and not status:
        status = f"exit status {process.returncode}: {(folder / f'{name}.log').read_text()[-500:]}"
    return Part(name, time.monotonic() - start, usage.ru_maxrss / 2**20, status)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--gpus", type=int, default=512)
    parser.add_argument("--search", default="all", choices=["all", "executable"])
    parser.add_argument("--limit", type=float, default=60.0, help="seconds in all")
    flags = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gpt3.py").write_text(SCRIPT.format(layers=flags.layers))
        graph, costs = "gpt3.graph.json", "gpt3.costs.json"
        cluster = ["--gpus", str(flags.gpus), "--device", "a100"]
        search = ["--search", flags.search, "-o", "plan.json"]
        parts = []
        for part, arguments in [
            ("capture", ["capture", "gpt3.py:build_model", "-o", graph]),
            ("costs", ["profile", graph, "--device", "a100", "-o", costs]),
            ("plan", ["plan", costs, *cluster, *search]),
        ]:
            parts.append(run(part, arguments, folder, PATIENCE * flags.limit))
            if parts[-1].status:
                break

    print("part     seconds  peak GiB")
    for part in parts:
        print(f"{part.name:8} {part.seconds:7.1f} {part.peak_gib:9.2f}  {part.status}".rstrip())
    seconds = sum(part.seconds for part in parts)
    peak = max(part.peak_gib for part in parts)
    print(f"total    {seconds:7.1f} {peak:9.2f}")
    print(f"limit    {flags.limit:7.1f} {MEMORY_LIMIT_GIB:9.2f}")
    good = seconds <= flags.limit and peak <= MEMORY_LIMIT_GIB
    good = good and not any(part.status for part in parts)
    print("the limits are kept" if good else "the limits are NOT kept")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
