"""One job started by torchrun itself, as users start it."""

import json
import subprocess
import sys
from pathlib import Path

import autopart
import torch
from torch import nn

# Beside this Python, whether built here or installed.
AUTOPART = str(Path(sys.executable).parent / "autopart")

SCRIPT = """
import torch
from torch import nn
import autopart.smp as smp

smp.init({"pipeline_parallel_degree": 2, "microbatches": 2})
torch.manual_seed(smp.rank())
model = smp.DistributedModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.05))


@smp.step
def train_step(model, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    model.backward(loss)
    return loss


torch.manual_seed(0)
x = torch.randn(16, 4)
losses = []
for _ in range(30):
    optimizer.zero_grad()
    losses.append(train_step(model, x, x.sum(1, keepdim=True)).reduce_mean().item())
    optimizer.step()
assert losses[-1] < losses[0] / 3, losses
print(f"rank {smp.rank()} of {smp.size()} good")
"""


def test_a_script_trains_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc_per_node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2 good" in done.stdout and "rank 1 of 2 good" in done.stdout


def test_autopart_run_trains_by_a_plan_under_torchrun(tmp_path):
    model, plan, record = tmp_path / "model.pt", tmp_path / "plan.json", tmp_path / "run.json"
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    autopart.save(module, (x,), model, loss=nn.functional.mse_loss, targets=y)
    autopart.plan(str(model), gpus=2, device="cpu", stages=2, micro_batches=2).save(plan)
    torch.save([torch.randn(16, 8), torch.randn(16, 8)], tmp_path / "data.pt")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no_python"]
    program = [AUTOPART, "run", str(plan), str(model)]
    flags = ["--steps", "5", "--data", str(tmp_path / "data.pt"), "-o", str(record)]
    done = subprocess.run(
        [*command, "--nproc_per_node", "2", *program, *flags],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("5 steps on 2 ranks (shared memory") == 1, done.stdout
    told = json.loads(record.read_text())
    assert len(told["step_s"]) == len(told["losses"]) == 5
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    ends = [action["end_s"] for rank in told["ranks"] for action in rank["actions"]]
    assert abs(max(ends) - told["step_s"][told["typical_step"]]) < 1e-3
