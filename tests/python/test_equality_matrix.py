"""Every schedule, stage count, micro-batch count and replica count gives one device's numbers.

Two oracles: plain PyTorch over the same micro-batches (|a - b| <= 1e-12 max(1, max|b|), float64),
and the same plan with all ranks' actions on one thread (to the last bit). With dropout plain
PyTorch draws other masks, so the first oracle is the same graph on one stage.
"""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import autopart
import pytest
import torch
from torch import Tensor
from zoo import Entry, zoo

ROWS = 2  # of a micro-batch; BatchNorm needs two
STEPS = 3
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def assert_close(got: Tensor | None, want: Tensor | None, what: str) -> None:
    if got is None or want is None:
        other = want if got is None else got
        assert other is None or not other.any(), f"{what}: one side has no value"
        return
    limit = 1e-12 * max(1.0, want.abs().max().item()) if want.numel() else 0
    difference = (got - want).abs().max().item() if want.numel() else 0
    assert difference <= limit, f"{what}: differs by {difference:.3g}, limit {limit:.3g}"


def assert_same_bits(got: Tensor | None, want: Tensor | None, what: str) -> None:
    if got is None or want is None:
        assert got is None and want is None, f"{what}: one side has no value"
        return
    assert torch.equal(got, want), f"{what}: differs by {(got - want).abs().max().item():.3g}"


class Side:
    """One way to run a step: its parameters, an optimizer over them, and the step itself."""

    def __init__(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], optimizer, run):
        self.parameters, self.buffers, self.run = dict(sorted(parameters.items())), buffers, run
        self.optimizer = optimizer(list(self.parameters.values()))  # state is keyed by position

    def start_from(self, other: Side) -> None:
        with torch.no_grad():
            for name, tensor in (self.parameters | self.buffers).items():
                tensor.copy_((other.parameters | other.buffers)[name])
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))

    def step(self, inputs: tuple[Tensor, ...]) -> float:
        for parameter in self.parameters.values():
            parameter.grad = None
        loss = self.run(inputs)
        self.optimizer.step()
        return loss


def plain_side(entry: Entry, optimizer) -> Side:
    def run(inputs: tuple[Tensor, ...]) -> float:
        chunks = list(zip(*(tensor.split(ROWS) for tensor in inputs), strict=True))
        total = 0.0
        for chunk in chunks:
            loss = entry.model(*chunk)
            loss.backward(torch.tensor(1 / len(chunks), dtype=loss.dtype))
            total += loss.item() / len(chunks)
        return total

    return Side(
        dict(entry.model.named_parameters()), dict(entry.model.named_buffers()), optimizer, run
    )


def executor_side(plan: autopart.Plan, path: Path, optimizer, mode: str) -> Side:
    executor = autopart.Executor(plan, path, mode=mode, seed=7)
    tensors = executor.state_dict()
    parameters = {name: t for name, t in tensors.items() if t.requires_grad}
    buffers = {name: t for name, t in tensors.items() if not t.requires_grad}
    return Side(parameters, buffers, optimizer, lambda inputs: executor.step(*inputs).loss.item())


@pytest.fixture(scope="module", params=sorted(zoo()))
def saved(request, tmp_path_factory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("zoo") / f"{request.param}.pt"
    entry = zoo()[request.param]()
    autopart.save(entry.model, entry.make_inputs(ROWS, 0), path, loss=lambda loss: loss)
    return request.param, path


def check(saved: tuple[str, Path], stages: int, micro_batches: int, schedule: str, replicas: int):
    name, path = saved
    options = {"micro_batches": micro_batches, "schedule": schedule, "device": "cpu"}
    plan = autopart.plan(path, gpus=stages * replicas, stages=stages, replicas=replicas, **options)
    assert (plan.num_stages, plan.micro_batches, plan.schedule) == (stages, micro_batches, schedule)
    for optimizer_name, optimizer in OPTIMIZERS.items():
        entry = zoo()[name]()
        if entry.has_random:
            one = autopart.plan(path, gpus=1, stages=1, replicas=1, **options)
            reference = executor_side(one, path, optimizer, "one-thread")
        else:
            reference = plain_side(entry, optimizer)
        threads = executor_side(plan, path, optimizer, "threads")
        oracle = executor_side(plan, path, optimizer, "one-thread")
        assert threads.parameters.keys() == reference.parameters.keys()
        for step in range(STEPS):
            inputs = entry.make_inputs(ROWS * micro_batches, step)
            for side in (threads, oracle):
                side.start_from(reference)
            losses = [side.step(inputs) for side in (threads, oracle, reference)]
            what = f"{name} {optimizer_name} step {step}"
            assert losses[0] == losses[1], f"{what}: loss"
            assert_close(torch.tensor(losses[0]), torch.tensor(losses[2]), f"{what}: loss")
            for key, parameter in threads.parameters.items():
                assert_same_bits(parameter.grad, oracle.parameters[key].grad, f"{what}: d{key}")
                assert_same_bits(parameter, oracle.parameters[key], f"{what}: {key}")
                assert_close(parameter.grad, reference.parameters[key].grad, f"{what}: d{key}")
                assert_close(parameter, reference.parameters[key], f"{what}: {key}")
            for key, buffer in threads.buffers.items():
                assert_same_bits(buffer, oracle.buffers[key], f"{what}: {key}")
                if replicas == 1:  # else replica 0's statistics rule, as in DDP
                    assert_close(buffer, reference.buffers[key], f"{what}: {key}")


@pytest.mark.parametrize(
    ("stages", "micro_batches", "schedule", "replicas"),
    [(2, 3, "1f1b", 1), (3, 2, "gpipe", 1), (2, 2, "1f1b", 2)],
)
def test_a_pipeline_equals_one_device(saved, stages, micro_batches, schedule, replicas):
    check(saved, stages, micro_batches, schedule, replicas)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "micro_batches", "schedule", "replicas"),
    list(itertools.product((1, 2, 3, 4), (1, 2, 3, 7), ("gpipe", "1f1b"), (1, 2))),
)
def test_every_pipeline_equals_one_device(saved, stages, micro_batches, schedule, replicas):
    check(saved, stages, micro_batches, schedule, replicas)
