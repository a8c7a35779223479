"""What the runtime adds to a stage's compute, next to torch.distributed.pipelining.

    .venv/bin/python tests/benchmarks/step_overhead.py [--micro-batches 8,32,64] [--rounds 40]

Two ranks, each a process pinned to a core with one thread, run 1F1B over two stages of two
Linear(16) with micro-batches of 4: so small that almost all of a step is runtime. autopart over
shared memory and torch's Schedule1F1B over Gloo take turns in the same processes, step by step, so
that both meet the same machine. A step is timed on rank 0, from a barrier to the end of its last
backward. The overhead is the step divided by its micro-batches, less the forward and backward of
one micro-batch on a stage alone (eager, the fastest tenth of many); the pipeline's idle time counts
as overhead. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, MICRO_BATCH = 16, 4


def stage_module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


class Both(nn.Module):
    """The two stages one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = stage_module()
        self.second = stage_module()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def us(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


def torch_step(rank: int, model: Both, num: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    module = model.first if rank == 0 else model.second
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, num, loss_fn=nn.MSELoss())
    if rank == 0:
        return lambda: schedule.step(x)
    return lambda: schedule.step(target=y)


def autopart_step(
    rank: int, model: Both, num: int, x: Tensor, y: Tensor, ranks: object
) -> Callable[[], None]:
    from autopart import _core
    from autopart.plan import import_model

    imported = import_model(
        model, (x[:MICRO_BATCH],), nn.functional.mse_loss, y[:MICRO_BATCH], False
    )
    costs = _core.build_cost_graph(imported.graph, "cpu", True)
    pins = [0 if node.module.startswith("first") else 1 for node in costs.nodes]
    message = [None]
    if rank == 0:
        made = _core.make_plan(
            costs,
            _core.Cluster.uniform("cpu", 2),
            _core.PlannerOptions(
                stages=2,
                replicas=1,
                micro_batches=num,
                schedule="1f1b",
                pinned_stage_of_node=pins,
            ),
        )
        message = [made.to_json()]
    dist.broadcast_object_list(message, src=0)
    plan = _core.Plan.from_json(message[0])
    executor = _core.RankExecutor(
        imported.graph,
        plan,
        rank,
        imported.tensors,
        ranks,
        deadline_s=60.0,
        seed=0,
        check_finite=False,
    )
    inputs = [list(pair) for pair in zip(x.split(MICRO_BATCH), y.split(MICRO_BATCH), strict=True)]
    weights = [1.0 / num] * num
    count = 0

    def step() -> None:
        nonlocal count
        executor.step(
            count,
            training=True,
            backward=True,
            inputs=inputs,
            weights=weights,
            communicator=ranks,
        )
        count += 1

    return step


def compute_alone(repeats: int) -> float:
    """Microseconds of a stage's forward and backward of one micro-batch."""
    module = stage_module()
    x = torch.randn(MICRO_BATCH, WIDTH, requires_grad=True)
    g = torch.randn(MICRO_BATCH, WIDTH)
    times = []
    for _ in range(repeats):
        module.zero_grad()
        start = time.perf_counter()
        torch.autograd.backward(module(x), g)
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 10] * 1e6


def same_gradients(model: Both, num: int, x: Tensor, y: Tensor, rank: int) -> None:
    """The two must do the same work: gradients of one step against one process."""
    reference = Both()
    reference.load_state_dict(model.state_dict())
    for a, b in zip(x.split(MICRO_BATCH), y.split(MICRO_BATCH), strict=True):
        (nn.functional.mse_loss(reference(a), b) / num).backward()
    mine, theirs = ((m.first if rank == 0 else m.second).parameters() for m in (model, reference))
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def run_rank(rank: int, port: int, counts: list[int], rounds: int) -> None:
    from autopart import _core

    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    ranks = _core.join_shared_memory(f"step-overhead-{port}", rank, 2, 60.0)
    worst = 0.0
    if rank == 0:
        print(
            f"two ranks, stage 2 x Linear({WIDTH}), micro-batch {MICRO_BATCH}, 1F1B, "
            f"us a micro-batch beyond the stage's compute"
        )
        print("micro-batches   autopart (shared memory)   torch 1F1B (Gloo)   ratio")
    for num in counts:
        torch.manual_seed(0)
        x = torch.randn(num * MICRO_BATCH, WIDTH)
        y = torch.randn(num * MICRO_BATCH, WIDTH)
        model = Both()
        steps = {
            "autopart": autopart_step(rank, model, num, x, y, ranks),
            "torch": torch_step(rank, model, num, x, y),
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for name in steps:
            model.zero_grad()
            steps[name]()
            same_gradients(model, num, x, y, rank)
        for round in range(-5, rounds):
            for name, step in steps.items():
                model.zero_grad()
                ranks.barrier([0, 1], 60.0)
                start = time.perf_counter()
                step()
                if round >= 0:
                    times[name].append(time.perf_counter() - start)
        # Both ranks compute at once, as they do in a step.
        ranks.barrier([0, 1], 60.0)
        alone = compute_alone(500)
        ranks.barrier([0, 1], 60.0)
        if rank != 0:
            continue
        over = {name: us(times[name]) / num - alone for name in steps}
        ratio = over["autopart"] / over["torch"]
        worst = max(worst, ratio)
        print(
            f"{num:13}   {over['autopart']:24.1f}   {over['torch']:17.1f}   {ratio:5.3f}"
            f"   (stage alone {alone:.0f})",
            flush=True,
        )
    if rank == 0:
        verdict = "met" if worst <= 0.25 else "MISSED"
        print(f"largest ratio {worst:.3f}; the aim of at most 0.25 is {verdict}", flush=True)
    dist.destroy_process_group()
    if worst > 0.25:
        sys.exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--micro-batches", default="8,32,64")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        counts = [int(n) for n in options.micro_batches.split(",")]
        run_rank(options.rank, options.port, counts, options.rounds)
        return 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, __file__, "--port", str(port), "--micro-batches"]
    command += [options.micro_batches, "--rounds", str(options.rounds), "--rank"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    children = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(2)]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main())
