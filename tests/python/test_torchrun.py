"""One job started by torchrun itself, as users start it."""

import subprocess
import sys
from pathlib import Path

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
