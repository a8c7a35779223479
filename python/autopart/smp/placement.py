"""Which rank holds which parameter, and how parameters leave and come back.

A parameter that is not on this rank becomes a meta tensor under the same Python object
(torch.utils.swap_tensors), so that optimizers made earlier keep working: they skip what has no
gradient. Reading it raises torch's error about meta tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import _core
from ..meta import meta_like
from .collectives import broadcast_tensor
from .state import state

Operator = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Placement:
    """Stages that hold each parameter and buffer, by global name; the first owns it."""

    stages_of: dict[str, list[int]]
    name_of: dict[str, str]  # every name, aliases included, to the global one
    # Stage of each operator of the first plan that uses parameters: later plans follow it.
    stage_of_operator: dict[Operator, list[int]] = field(default_factory=dict)

    def is_local(self, name: str) -> bool:
        return state.pp_rank in self.stages_of[self.name_of[name]]

    def owner(self, name: str) -> int:
        return self.stages_of[self.name_of[name]][0]


def operators_of(graph: _core.OpGraph, costs: _core.CostGraph) -> list[Operator]:
    """Module, operator and parameters of every node: what tells it in another capture."""
    names = [parameter.name for parameter in graph.parameters]  # constants come after these
    return [
        (n.module, n.name, tuple(names[i] for i in n.parameters if i < len(names)))
        for n in costs.nodes
    ]


def make_placement(graph: _core.OpGraph, plan: _core.Plan, operators: list[Operator]) -> Placement:
    stages_of: dict[str, list[int]] = {p.name: [] for p in graph.parameters}
    parameters = graph.parameters
    for stage in plan.stages:
        for index in stage.owned_parameters:
            if index < len(parameters):
                stages_of[parameters[index].name].insert(0, stage.index)
    for stage in plan.stages:
        for index in stage.copied_parameters:
            if index < len(parameters):
                stages_of[parameters[index].name].append(stage.index)
    name_of = {name: p.name for p in parameters for name in (p.name, *p.aliases)}
    stage_of_operator: dict[Operator, list[int]] = {}
    stage_of_node = {node: stage.index for stage in plan.stages for node in stage.nodes}
    for node in sorted(stage_of_node):
        if operators[node][2]:
            stage_of_operator.setdefault(operators[node], []).append(stage_of_node[node])
    return Placement(stages_of, name_of, stage_of_operator)


def take_rank0_values(placement: Placement, tensors: dict[str, Tensor]) -> None:
    """Every holder gets rank 0's value of what it will hold."""
    layout = state.layout
    assert layout is not None
    for name, stages in placement.stages_of.items():
        holders = {layout.rank_of(s, d) for s in stages for d in range(layout.dp_size)}
        group = sorted(holders | {0})
        if state.rank in group:
            broadcast_tensor(tensors[name], 0, group)


@contextmanager
def _without_weak_references(modules: Iterable[nn.Module]) -> Iterator[None]:
    """nn.LSTM and its kin keep weak references to their weights, which forbid the swap."""
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    for module in recurrent:
        module._flat_weight_refs = []
    try:
        yield
    finally:
        for module in recurrent:
            module._flat_weight_refs = [
                None if weight is None else weakref.ref(weight) for weight in module._flat_weights
            ]


def release_others(
    placement: Placement, module: nn.Module, tensors: dict[str, Tensor], optimizers: list[Any]
) -> None:
    """Turns what this rank does not hold into meta tensors, with their optimizer state."""
    with _without_weak_references(module.modules()):
        _release_others(placement, tensors, optimizers)


def _release_others(
    placement: Placement, tensors: dict[str, Tensor], optimizers: list[Any]
) -> None:
    for name, tensor in tensors.items():
        if placement.is_local(name) or tensor.is_meta:
            continue
        for optimizer in optimizers:
            optimizer.state.pop(tensor, None)
        tensor.grad = None
        try:
            torch.utils.swap_tensors(tensor, meta_like(tensor))
        except RuntimeError as error:
            raise RuntimeError(
                f"{name} cannot leave this rank: something else holds it ({error}). Drop traced or "
                "exported copies and earlier results of the model before the first step"
            ) from error


def receive_missing(placement: Placement, entries: Any, *, to_rank0: bool) -> None:
    """Replaces the meta tensors among a state_dict's entries by the values of their owners."""
    layout = state.layout
    assert layout is not None
    if to_rank0 and state.dp_rank != layout.dp_rank(0):
        return
    pipeline = layout.pp_group(state.dp_rank)
    received: dict[str, Tensor] = {}
    for key, value in entries.items():
        if not isinstance(value, Tensor) or key not in placement.name_of:
            continue
        name = placement.name_of[key]
        if name not in received:
            owner = pipeline[placement.owner(name)]
            local = value.detach()
            if local.is_meta:
                local = torch.empty_like(local, device="cpu")
            group = sorted({owner, 0} if to_rank0 else pipeline)
            if state.rank in group:
                mine = local if state.rank == owner or value.is_meta else local.clone()
                broadcast_tensor(mine, owner, group)
            received[name] = local
        if value.is_meta:
            entries[key] = received[name]


def named_tensors(module: nn.Module, graph: _core.OpGraph) -> dict[str, Tensor]:
    """The module's own tensors by the graph's global names."""
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    named.update(module.named_buffers(remove_duplicate=False))
    return {parameter.name: named[parameter.name] for parameter in graph.parameters}
