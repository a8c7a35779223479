"""A rank that dies: the others end soon, and say who and what they waited for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import _free_port

SCRIPT = """
import torch
from torch import nn
import autopart.smp as smp

smp.init({"pipeline_parallel_degree": 2, "microbatches": 2, "deadline": DEADLINE,
          "transport": TRANSPORT})
model = smp.DistributedModel(nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)]))


@smp.step
def train_step(model, x):
    model.backward(model(x).square().mean())


for step in range(10**9):
    train_step(model, torch.ones(8, 64))
    if step == 3:
        print("running", flush=True)
"""


@pytest.mark.parametrize(("transport", "limit_s"), [("shared memory", 4.0), ("gloo", 32.0)])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_others_end_with_the_cause(tmp_path, transport, limit_s, victim):
    script = tmp_path / "train.py"
    text = SCRIPT.replace("DEADLINE", "30.0").replace("TRANSPORT", repr(transport))
    script.write_text(text)
    before = set(os.listdir("/dev/shm"))
    port = str(_free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
            | {"MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parent,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            assert process.stdout.readline() == "running\n", process.stderr.read()
        ranks[victim].send_signal(signal.SIGKILL)
        start = time.monotonic()
        survivor = ranks[1 - victim]
        _, errors = survivor.communicate(timeout=30)
        assert time.monotonic() - start < limit_s
        assert survivor.returncode != 0
        assert f"rank {victim}" in errors and f"stage {victim}" in errors, errors
        assert any(w in errors for w in ("action ", "agreeing on", "sharing the")), errors
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "autopart" in name}


def test_under_torchrun_the_survivor_says_on_sigterm_what_it_waited_for(tmp_path):
    script = tmp_path / "train.py"
    text = SCRIPT.replace("DEADLINE", "30.0").replace("TRANSPORT", "'shared memory'")
    text = "import os, signal\n" + text
    text += "    if step == 5 and smp.rank() == 1:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    script.write_text(text)
    torchrun = Path(sys.executable).parent / "torchrun"
    done = subprocess.run(
        [torchrun, "--nproc_per_node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parent,
    )
    assert done.returncode != 0
    # Its own watch may be faster than the launcher's signal; either way it says who and what.
    assert "rank 0" in done.stderr, done.stderr
    assert "waits, " in done.stderr or "action " in done.stderr, done.stderr
    assert "rank 1 (process" in done.stderr and "has died" in done.stderr, done.stderr
