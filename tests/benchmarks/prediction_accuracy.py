"""Predicted and measured steps and memory, of plans that were never run before.

    .venv/bin/python tests/benchmarks/prediction_accuracy.py [--models mlp,gpt2] [--steps 100]

Two ranks, threads of one process, pinned to a core each. Profiles and runs alternate: each round
profiles the model, then runs some steps of every plan, so that all meet the same machine. Costs are
the medians over the rounds, steps the 10th percentile over all of them. One run of one plan (the
first row) gives the model's one scale factor; the other plans are predicted with it: other cuts,
other numbers of micro-batches, other schedules, replicas instead of stages.

Where it is allowed to, the measuring runs with real-time priority, so that other work waits
(--priority normal: it does not). Prints one table; writes into a temporary folder only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import autopart
import torch
from autopart import _core
from torch import Tensor, nn

AUTOPART = str(Path(sys.executable).parent / "autopart")


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet50(classes: int) -> nn.Sequential:
    """He et al. (2016), for small images: the same 16 blocks after the same first layers."""
    modules: list[nn.Module] = [
        nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            modules.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    return nn.Sequential(*modules, head)


def save_mlp(path: Path) -> None:
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(512, 512), nn.GELU()]
    module = nn.Sequential(*layers, nn.Linear(512, 10))
    x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))
    autopart.save(module, (x,), path, loss=nn.functional.cross_entropy, targets=y)


def save_resnet50(path: Path) -> None:
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 100, (4,))
    autopart.save(resnet50(100), (x,), path, loss=nn.functional.cross_entropy, targets=y)


def save_gpt2(path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=2000,
        n_positions=128,
        n_embd=256,
        n_layer=12,
        n_head=8,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = torch.randint(0, config.vocab_size, (2, 32))
    inputs = {"input_ids": ids, "labels": ids}
    autopart.save(GPT2LMHeadModel(config), inputs, path, loss="loss")


def save_bert(path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=2000,
        hidden_size=256,
        num_hidden_layers=12,
        num_attention_heads=8,
        intermediate_size=1024,
        max_position_embeddings=128,
    )
    ids = torch.randint(0, config.vocab_size, (2, 32))
    inputs = {"input_ids": ids, "labels": ids}
    autopart.save(BertForMaskedLM(config), inputs, path, loss="loss")


@dataclass(frozen=True)
class Case:
    name: str
    save: Callable[[Path], None]
    blocks: str  # path of the k-th block, for cuts
    early: int  # the last block of stage 0, for an early and a late cut
    late: int
    optimizer: str


CASES = (
    Case("mlp", save_mlp, "{}", 6, 18, "adam"),
    Case("resnet50", save_resnet50, "{}", 6, 12, "sgd-momentum"),
    Case("gpt2", save_gpt2, "transformer.h.{}", 3, 8, "adamw"),
    Case("bert", save_bert, "bert.encoder.layer.{}", 3, 8, "adam"),
)


@dataclass
class Row:
    name: str
    flags: list[str]
    path: Path = Path()
    steps: list[float] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    def p10_ms(self) -> float:
        return 1e3 * sorted(self.steps)[(len(self.steps) - 1) // 10]


def rows(case: Case) -> list[Row]:
    def cut(last: int) -> list[str]:
        first, second = case.blocks.format(last), case.blocks.format(last + 1)
        return ["--pin", f"{first}=0", "--pin", f"{second}=1"]

    def flags(stages: int, schedule: str, micro_batches: int, *more: str) -> list[str]:
        replicas = ["--replicas", str(2 // stages)]
        counts = ["--stages", str(stages), "--micro-batches", str(micro_batches)]
        return [*counts, *replicas, "--schedule", schedule, *more]

    return [
        Row("2 stages, 1f1b, 4 micro-batches: gives the factor", flags(2, "1f1b", 4)),
        Row("2 stages, gpipe, 4", flags(2, "gpipe", 4)),
        Row("2 stages, 1f1b, 2", flags(2, "1f1b", 2)),
        Row("2 stages, 1f1b, 8", flags(2, "1f1b", 8)),
        Row("early cut, 1f1b, 4", flags(2, "1f1b", 4, *cut(case.early))),
        Row("late cut, gpipe, 4", flags(2, "gpipe", 4, *cut(case.late))),
        Row("late cut, 1f1b, 6", flags(2, "1f1b", 6, *cut(case.late))),
        Row("1 stage x 2, 4", flags(1, "1f1b", 4)),
        Row("1 stage x 2, 2", flags(1, "1f1b", 2)),
    ]


def first_in_line() -> None:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def may_be_first() -> bool:
    try:
        subprocess.run(["true"], preexec_fn=first_in_line, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


class Autopart:
    """The command, with priority where that is allowed."""

    def __init__(self, priority: str) -> None:
        self.before = first_in_line if priority == "real-time" and may_be_first() else None

    def __call__(self, *args: str | Path, deadline_s: float = 600) -> str:
        done = subprocess.run(
            [AUTOPART, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=deadline_s,
            preexec_fn=self.before,
        )
        if done.returncode != 0:
            raise RuntimeError(f"autopart {' '.join(map(str, args))}: {done.stderr}")
        return done.stdout


def medians(graphs: list[dict[str, Any]]) -> dict[str, Any]:
    """One cost graph with the medians of what was measured."""
    merged = json.loads(json.dumps(graphs[0]))
    for i, node in enumerate(merged["nodes"]):
        for key in ("forward_ms", "backward_input_ms", "backward_weight_ms"):
            node[key] = statistics.median(graph["nodes"][i][key] for graph in graphs)
    for key in ("link_bytes_per_ms", "link_latency_ms"):
        merged[key] = statistics.median(graph[key] for graph in graphs)
    for i, update in enumerate(merged["updates"]):
        rate = statistics.median(graph["updates"][i]["bytes_per_ms"] for graph in graphs)
        update["bytes_per_ms"] = rate
    return merged


def measure(case: Case, folder: Path, run: Autopart, args: argparse.Namespace) -> list[str]:
    model, costs = folder / f"{case.name}.pt", folder / f"{case.name}.costs.json"
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.save(model)
    run("profile", model, "-o", costs)
    table = rows(case)
    for i, row in enumerate(table):
        row.path = folder / f"{case.name}.{i}.plan.json"
        plan = ["plan", costs, "--gpus", "2", "--optimizer", case.optimizer, "-o", row.path]
        run(*plan, *row.flags)

    graphs = []
    start = time.monotonic()
    per_round = max(1, args.steps // args.rounds)
    for _ in range(args.rounds):
        run("profile", model, "-o", costs)
        graphs.append(json.loads(costs.read_text()))
        for row in table:
            record = folder / "run.json"
            run("run", row.path, model, "--steps", str(per_round), "-o", record)
            told = json.loads(record.read_text())
            row.steps += told["step_s"]
            row.record = told
        if time.monotonic() - start > args.seconds:
            break

    costs.write_text(json.dumps(medians(graphs)))
    uncalibrated = _core.CostGraph.from_json(costs.read_text())
    record = folder / "run.json"
    record.write_text(json.dumps({**table[0].record, "step_s": table[0].steps, "losses": []}))
    scaled = folder / f"{case.name}.scaled.json"
    run("profile", costs, "--plan", table[0].path, "--actual", record, "-o", scaled)
    calibrated = _core.CostGraph.from_json(scaled.read_text())
    scale = json.loads(scaled.read_text())["scale"]
    if args.keep:
        for row in table:
            kept = {**row.record, "step_s": row.steps, "losses": []}
            row.path.with_suffix(".run.json").write_text(json.dumps(kept))

    print(f"\n{case.name}: factor {scale:.3f}; p10 of {len(table[0].steps)} steps each\n")
    print("| plan | predicted ms | measured ms | error | before the factor | memory error |")
    print("|---|---|---|---|---|---|")
    failures, times = [], []
    for i, row in enumerate(table):
        plan = _core.Plan.from_json(row.path.read_text())
        before = plan.cost_anew(uncalibrated).predicted_step_ms
        costed = plan.cost_anew(calibrated)
        predicted, measured = costed.predicted_step_ms, row.p10_ms()
        error = predicted / measured - 1
        memory = memory_error(costed, row.record)
        print(
            f"| {row.name} | {predicted:.1f} | {measured:.1f} | {error:+.1%} | "
            f"{before / measured - 1:+.1%} | {memory:+.1%} |"
        )
        if i == 0:
            continue
        times.append((predicted, measured))
        if abs(error) > 0.1 or abs(memory) > 0.1:
            failures.append(f"{case.name}, {row.name}: step {error:+.1%}, memory {memory:+.1%}")
    pairs = [(a, b) for i, a in enumerate(times) for b in times[:i]]
    apart = [(a, b) for a, b in pairs if abs(a[1] - b[1]) > 0.05 * min(a[1], b[1])]
    right = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart)
    print(f"\norder: {right} of {len(apart)} pairs that differ by over 5 % are predicted in order")
    if right < len(apart):
        failures.append(f"{case.name}: {len(apart) - right} pairs in the wrong order")
    return failures


def memory_error(plan: _core.Plan, record: dict[str, Any]) -> float:
    """Of the stage that is predicted worst."""
    errors = []
    for stage in plan.stages:
        measured = max(record["ranks"][rank]["peak_bytes"] for rank in stage.ranks)
        errors.append(stage.peak_memory_bytes / measured - 1)
    return max(errors, key=abs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(case.name for case in CASES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=600, help="cap on each model's rounds")
    parser.add_argument("--priority", choices=("real-time", "normal"), default="real-time")
    parser.add_argument("--keep", type=Path, help="folder for plans, costs and records")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    run = Autopart(args.priority)
    print(f"priority: {'real-time' if run.before else 'normal'}; load {os.getloadavg()[0]:.1f}")
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            if case.name in args.models.split(","):
                failures += measure(case, folder, run, args)
                sys.stdout.flush()
    print(f"\n{len(failures)} beyond the bounds (10 % of a step, 10 % of memory, order)")
    for failure in failures:
        print(f"- {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
