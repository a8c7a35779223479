"""autopart.plan: how to split a model over devices, decided and explained."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from . import _core
from .captured_model import CapturedModel
from .save import Loss, capture_module
from .trace import Trace


class Plan:
    """Everything decided: which operator on which stage on which ranks, in which order.

    repr() is the report. Two plans are equal when every decision is.
    """

    def __init__(self, core: _core.Plan) -> None:
        self._core = core

    @property
    def num_stages(self) -> int:
        return len(self._core.stages)

    @property
    def micro_batches(self) -> int:
        return self._core.micro_batches

    @property
    def schedule(self) -> str:
        return self._core.schedule

    @property
    def predicted_step_ms(self) -> float:
        return self._core.predicted_step_ms

    @property
    def bound_ms(self) -> float:
        """No plan on these devices can be faster."""
        return self._core.bound_ms

    @property
    def stages(self) -> list[_core.PlanStage]:
        return self._core.stages

    @property
    def model_hash(self) -> str:
        return self._core.model_hash

    def to_json(self) -> str:
        return self._core.to_json()

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(self.to_json())

    def report(self, format: str = "text") -> str:
        return self._core.report(format)

    def __repr__(self) -> str:
        return self.report()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._core == other._core

    __hash__ = None  # type: ignore[assignment]


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan that `autopart plan -o` or Plan.save wrote."""
    return Plan(_core.Plan.from_json(Path(path).read_text()))


def plan(
    model: nn.Module | CapturedModel | str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    gpus: int | None = None,
    device: str | None = None,
    cluster: str | os.PathLike[str] | None = None,
    loss: Loss = None,
    targets: Any = None,
    loss_is_sum: bool = False,
    micro_batches: int | None = None,
    batch: int | None = None,
    stages: int | None = None,
    replicas: int | None = None,
    schedule: str | None = None,
    recompute: str | None = None,
    shard_optimizer: bool | None = None,
    memory: int | None = None,
    optimizer: str = "adam",
    pins: Mapping[str, int] | None = None,
    same_stage: Sequence[Sequence[str]] = (),
    search: str = "executable",
    training: bool | None = None,
    seed: int = 0,
) -> Plan:
    """Plans a model for `gpus` equal devices, or for those of a cluster.

    model: a module, what autopart.capture gives, or a file of either (autopart.save,
    CapturedModel.save). The example inputs, of a module only, are one micro-batch.
    device: a name that `autopart plan --device` knows; times are then estimated. Without one they
    are measured on this machine's CPU. cluster: a file of hosts, devices and links, instead of
    gpus and device (docs/clusters.md). training: plan for training steps; by default, where the
    model has a loss.

    Limits; what is not given is searched:
    micro_batches: in a step, of the example inputs' size. batch: samples in a step, instead.
    stages: of the pipeline. replicas: of each stage. schedule: "gpipe", "1f1b", ...
    recompute: forward work done again to hold less, "none", "all" or "auto" (the least that fits).
    shard_optimizer: spread the optimizer's state over the replicas of a stage. memory: bytes that a
    device may use, instead of all that it has. optimizer: "sgd", "sgd-momentum", "adam", "adamw".
    pins: module path -> stage, what is inside comes along. same_stage: groups of modules that share
    a stage, whichever. search: "executable", what can be run today; "all": every schedule,
    recomputation, sharded optimizers and overlapped reductions, to compare.

    Errors: ValueError for wishes that cannot be met (the message says which); RuntimeError where
    nothing fits, with how many bytes are missing and a change that fits.
    """
    graph, name = _graph_of(model, example_inputs, loss, targets, loss_is_sum)
    if training is None:
        training = graph.loss_output is not None
    devices = _cluster(gpus, device, cluster)
    costs = _core.build_cost_graph(
        graph, device or "", training, devices if cluster is not None else None
    )
    options = _core.PlannerOptions(
        stages=stages,
        replicas=replicas,
        micro_batches=micro_batches,
        batch=batch,
        schedule=schedule,
        recompute=recompute,
        shard_optimizer=shard_optimizer,
        memory_bytes=memory,
        optimizer=optimizer,
        training=training,
        pins=list((pins or {}).items()),
        same_stage=same_stage,
        search=search,
        seed=seed,
    )
    return Plan(_core.make_plan(costs, devices, options, name))


def _cluster(
    gpus: int | None, device: str | None, cluster: str | os.PathLike[str] | None
) -> _core.Cluster:
    if cluster is None:
        if gpus is None:
            raise ValueError("say which devices: gpus=N, or cluster=FILE")
        return _core.Cluster.uniform(device or "cpu", gpus)
    if gpus is not None or device is not None:
        raise ValueError("give either a cluster file, or gpus and device")
    try:
        return _core.Cluster.from_yaml(Path(cluster).read_text())
    except ValueError as error:
        raise ValueError(f"{os.fspath(cluster)}: {error}") from None


def _graph_of(
    model: nn.Module | CapturedModel | str | os.PathLike[str],
    example_inputs: Any,
    loss: Loss,
    targets: Any,
    loss_is_sum: bool,
) -> tuple[_core.OpGraph, str]:
    """The graph of what plan takes, and its name in reports."""
    if isinstance(model, nn.Module):
        imported = import_model(model, example_inputs, loss, targets, loss_is_sum)
        return imported.graph, type(model).__name__
    name = model.name if isinstance(model, CapturedModel) else Path(model).name
    _refuse_inputs(name, example_inputs, loss)
    graph = model.graph if isinstance(model, CapturedModel) else _core.load_graph(os.fspath(model))
    return graph, name


def _refuse_inputs(name: str, example_inputs: Any, loss: Loss) -> None:
    if example_inputs is not None or loss is not None:
        raise ValueError(f"{name} has its inputs and loss inside: leave example_inputs and loss")


def import_model(
    model: nn.Module | str | os.PathLike[str],
    example_inputs: Any,
    loss: Loss,
    targets: Any,
    loss_is_sum: bool,
) -> _core.Model:
    """The graph of a module or file with its tensors; a module's are its own Parameter objects."""
    if not isinstance(model, nn.Module):
        _refuse_inputs(os.fspath(model), example_inputs, loss)
        return _core.load_model(os.fspath(model))
    if example_inputs is None:
        raise ValueError("a module needs example_inputs: one micro-batch of its arguments")
    captured = capture_module(
        model, example_inputs, loss=loss, targets=targets, loss_is_sum=loss_is_sum
    )
    imported = import_capture(captured)
    return _core.Model(imported.graph, tensors_of(imported.graph, model))


def import_capture(captured: Trace) -> _core.Model:
    """The graph of a capture; its tensors are the capture's copies."""
    return _core.import_torchscript(
        captured.script,
        [
            _core.InputSpec(i.name, i.dtype, list(i.shape), i.bound, i.batch_axis)
            for i in captured.inputs
        ],
        captured.loss_output,
        captured.loss_is_sum,
        captured.strip_prefix,
        captured.training,
        captured.constants,
    )


def tensors_of(graph: _core.OpGraph, module: nn.Module) -> dict[str, Tensor]:
    """The module's own tensors by the graph's global names."""
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    named.update(module.named_buffers(remove_duplicate=False))
    return {parameter.name: named[parameter.name] for parameter in graph.parameters}
