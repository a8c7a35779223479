"""The whole path on real input: save, plan, train on two processes, compare. Run by `make demo`.

1. saves a small GPT-2 with its loss and shows `autopart plan model.pt --gpus 2`;
2. trains it by that plan with torchrun on two processes;
3. runs the same plan with all ranks' actions on one thread: must be equal to the last bit;
4. compares with the one-device script, dropout off: losses must agree to 1e-3.
"""

import difflib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import autopart
import torch
from gpt_text import Log, arguments, batches, build_model

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
STEPS, BATCH, MICRO_BATCHES = 100, 8, 4
COMPARED_STEPS = 20  # with the one-device script


def run(*command, quiet=False) -> None:
    print("$", " ".join(str(c).replace(str(BIN) + "/", "") for c in command), flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    child = subprocess.Popen(
        command, cwd=HERE, env=environment, stdout=subprocess.DEVNULL if quiet else None
    )
    try:
        status = child.wait()
    except KeyboardInterrupt:  # Ctrl-C has reached the child too, which ends its own children
        try:
            child.wait(30)
        finally:
            child.kill()
        raise
    if status != 0:
        raise subprocess.CalledProcessError(status, command)


def changed_lines() -> int:
    one, many = ((HERE / f"train_gpt_{n}.py").read_text() for n in ("one_device", "distributed"))
    lines = difflib.ndiff(one.splitlines(), many.splitlines())
    return sum(line.startswith("+ ") and line.strip() != "+" for line in lines)


def train_on_one_thread(plan: "autopart.Plan", log: Log) -> dict[str, torch.Tensor]:
    """The plan's actions, all ranks', on this thread: the oracle of the distributed run."""
    torch.manual_seed(0)
    model = build_model(dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    executor = autopart.Executor(
        plan, model, example_inputs(), loss=lambda out: out.loss, mode="one-thread"
    )
    for ids, labels in batches(STEPS, BATCH):
        optimizer.zero_grad()
        loss = executor.step(ids, labels).loss
        optimizer.step()
        log.step(loss.item())
    return model.state_dict()


def example_inputs() -> dict[str, torch.Tensor]:
    ids, labels = next(iter(batches(1, BATCH // MICRO_BATCHES)))
    return {"input_ids": ids, "labels": labels}


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="autopart-demo-"))
    torch.manual_seed(0)
    model = build_model(dropout=0.1)
    autopart.save(model, example_inputs(), folder / "model.pt", loss="loss")
    run(BIN / "autopart", "plan", folder / "model.pt", "--gpus", "2", "--stages", "2",
        "--micro-batches", str(MICRO_BATCHES), "-o", folder / "plan.json")  # fmt: skip
    plan = autopart.load_plan(folder / "plan.json")

    torchrun = (BIN / "torchrun", "--nproc_per_node", "2", "train_gpt_distributed.py")
    run(*torchrun, "--steps", str(STEPS), "--plan", folder / "plan.json",
        "--record", folder / "two.json", "--checkpoint", folder / "two.pt")  # fmt: skip
    two = json.loads((folder / "two.json").read_text())

    print("the same plan, all ranks' actions on one thread ...", flush=True)
    options = arguments_of("--record", str(folder / "oracle.json"))
    log = Log(options)
    state = train_on_one_thread(plan, log)
    trained = torch.load(folder / "two.pt")
    loss_difference = max(abs(a - b) for a, b in zip(two["losses"], log.losses, strict=True))
    parameter_difference = max(
        (trained[name].double() - state[name].double()).abs().max().item() for name in state
    )

    compared = ("--steps", str(COMPARED_STEPS), "--dropout", "0")
    run(
        BIN / "python",
        "train_gpt_one_device.py",
        *compared,
        "--record",
        folder / "a.json",
        quiet=True,
    )
    run(*torchrun, *compared, "--record", folder / "b.json", quiet=True)
    one, many = (json.loads((folder / n).read_text())["losses"] for n in ("a.json", "b.json"))
    one_device_difference = max(abs(a - b) for a, b in zip(one, many, strict=True))

    step_ms = statistics.median(two["step_ms"][5:])
    print(f"""
loss                        {two["losses"][0]:.4f} -> {two["losses"][-1]:.4f} in {STEPS} steps
samples/s                   {BATCH / step_ms * 1000:.1f}
step, predicted             {plan.predicted_step_ms:.1f} ms (optimizer and Python apart)
step, measured              {step_ms:.1f} ms
against one thread          losses differ by {loss_difference}, parameters by {parameter_difference}
against the one-device run  losses differ by {one_device_difference:.2e} (dropout off, limit 1e-3)
lines changed in the script {changed_lines()}""")

    good = (
        loss_difference == 0
        and parameter_difference == 0
        and one_device_difference <= 1e-3
        and two["losses"][-1] < two["losses"][0]
        and changed_lines() < 10
    )
    print("demo: good" if good else "demo: FAILED")
    return 0 if good else 1


def arguments_of(*argv: str):
    saved, sys.argv = sys.argv, ["demo", *argv]
    try:
        return arguments()
    finally:
        sys.argv = saved


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("demo: stopped")
