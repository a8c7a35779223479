"""autopart.Executor: trains or serves a model by a plan in this process, without a launcher."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import _core
from .plan import Plan, import_model
from .save import Loss
from .tree import flatten


@dataclass(frozen=True)
class StepResult:
    """What a step gives. outputs[j]: the flat results of micro-batch j."""

    loss: Tensor | None
    outputs: list[list[Any]]
    step_ms: float
    peak_bytes: list[int]


class Executor:
    """All ranks of a plan in this process, each with a thread of its own.

        executor = autopart.Executor(plan, model, example_inputs, loss=loss_fn, targets=y)
        loss = executor.step(x, y).loss    # gradients are in the parameters' .grad
        optimizer.step()

    The module's own Parameter objects train (with several replicas: those of replica 0, the others
    follow). After a failed step the executor is closed.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module | str | os.PathLike[str],
        example_inputs: Any = None,
        *,
        loss: Loss = None,
        targets: Any = None,
        loss_is_sum: bool = False,
        devices: Sequence[str | torch.device] | None = None,
        mode: str = "threads",
        seed: int | None = None,
        deadline: float = 300.0,
        check_finite: bool = False,
    ) -> None:
        """mode: "threads", or "one-thread": all ranks' actions on the calling thread.

        devices: one per rank of the plan, all "cpu" for now. deadline: seconds that any wait may
        take. seed: of dropout; by default torch.initial_seed().
        """
        if mode not in ("threads", "one-thread"):
            raise ValueError(f'mode is "threads" or "one-thread", not {mode!r}')
        wanted = [torch.device(d) for d in devices or ()]
        if any(d.type != "cpu" for d in wanted):
            raise ValueError("only CPU devices run for now; leave devices out")
        if wanted and len(wanted) != plan._core.num_devices:
            raise ValueError(f"the plan has {plan._core.num_devices} ranks, devices {len(wanted)}")
        self.plan = plan
        self.model = import_model(model, example_inputs, loss, targets, loss_is_sum)
        self._core = _core.Executor(
            plan._core,
            self.model,
            one_thread=mode == "one-thread",
            deadline_s=deadline,
            seed=(torch.initial_seed() if seed is None else seed) & (2**64 - 1),
            check_finite=check_finite,
        )

    def step(self, *inputs: Any, **kwargs: Any) -> StepResult:
        """A training step over a whole batch: inputs, then targets, in the captured order."""
        result = self._core.step(self._tensors(inputs, kwargs))
        return StepResult(result.loss, result.outputs, result.step_ms, result.peak_bytes)

    def forward(self, *inputs: Any, **kwargs: Any) -> list[Tensor]:
        """The flat results for a whole batch, without autograd."""
        return self._core.forward(self._tensors(inputs, kwargs))

    __call__ = forward

    def state_dict(self) -> dict[str, Tensor]:
        return self._core.parameters()

    def zero_grad(self) -> None:
        self._core.zero_grad()

    @property
    def step_count(self) -> int:
        """Keys random numbers; a checkpoint keeps it beside the parameters."""
        return self._core.step_count

    @step_count.setter
    def step_count(self, count: int) -> None:
        self._core.step_count = count

    def _tensors(self, inputs: Any, kwargs: Any) -> list[Tensor]:
        distinct: dict[int, Tensor] = {}
        for leaf in flatten((inputs, kwargs))[0]:
            if isinstance(leaf.value, Tensor):
                distinct.setdefault(id(leaf.value), leaf.value)
        wanted = self.model.graph.num_inputs
        if len(distinct) != wanted:
            raise ValueError(f"the model takes {wanted} tensors, {len(distinct)} were given")
        return list(distinct.values())
