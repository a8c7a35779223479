"""Manual placement of modules, and the pins that later plans need to follow the first one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .. import _core
from .placement import Operator, Placement, operators_of
from .state import state

_MARK = "_smp_partition"
FREE = -1


@contextmanager
def partition(index: int) -> Iterator[None]:
    """Modules created inside go to this stage; the innermost context wins."""
    _check(index)
    init = nn.Module.__init__

    def marking_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.__dict__[_MARK] = index

    nn.Module.__init__ = marking_init  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__init__ = init  # type: ignore[method-assign]


def set_partition(module: nn.Module, index: int) -> None:
    """Places a module and its children (unless they are placed themselves) on a stage.

    Counts with auto_partition=False, before the first step.
    """
    _check(index)
    module.__dict__[_MARK] = index


def _check(index: int) -> None:
    degree = state.cfg.pipeline_parallel_degree
    if not 0 <= index < degree:
        raise ValueError(f"partition {index} is not in 0 ... {degree - 1}")


def manual_pins(costs: _core.CostGraph, module: nn.Module) -> list[int]:
    """The stage of every node whose module is placed; FREE for the others.

    Modules that are not placed are on default_partition wherever the flow of data allows it.
    """
    marks = {n: vars(m)[_MARK] for n, m in module.named_modules() if _MARK in vars(m)}
    nodes = costs.nodes
    pins = [FREE if node.copyable else _mark_of(node.module, marks) for node in nodes]
    names = [f"{node.name} in {node.module or 'the step'}" for node in nodes]
    _check_forward(costs, pins, names)
    default = state.cfg.default_partition
    if default is not None:
        low, high = _bounds(costs, pins)
        for i, node in enumerate(nodes):
            unplaced = pins[i] == FREE and node.module and not node.copyable
            if unplaced and low[i] <= default <= high[i]:
                pins[i] = default
    return _whole_groups(costs, pins)


def following_pins(costs: _core.CostGraph, graph: _core.OpGraph, placement: Placement) -> list[int]:
    """Pins every node with parameters to a stage that holds them all."""
    pins = []
    taken: dict[Operator, int] = {}
    for operator in operators_of(graph, costs):
        module, name, used = operator
        if not used:
            pins.append(FREE)
            continue
        held = set.intersection(*(set(placement.stages_of[n]) for n in used))
        if not held:
            raise ValueError(
                f"{name} in {module or 'the step'} reads {', '.join(used)}, which the "
                "first step put on different stages: run a step that uses them together first"
            )
        before = placement.stage_of_operator.get(operator)
        if before:
            occurrence = taken.get(operator, 0)
            taken[operator] = occurrence + 1
            pins.append(before[min(occurrence, len(before) - 1)])
        else:
            pins.append(min(held) if len(held) == 1 else FREE)
    labels = [f"{node.name} in {node.module or 'the step'}" for node in costs.nodes]
    _check_forward(costs, pins, labels)
    return _whole_groups(costs, pins)


def _mark_of(path: str, marks: dict[str, int]) -> int:
    while path:
        if path in marks:
            return marks[path]
        path = path.rpartition(".")[0]
    return FREE


def _bounds(costs: _core.CostGraph, pins: list[int]) -> tuple[list[int], list[int]]:
    """Least and greatest stage of each node that the pins of others leave."""
    low = [max(pin, 0) for pin in pins]
    last = state.cfg.pipeline_parallel_degree - 1
    high = [last if pin == FREE else pin for pin in pins]
    edges = [(v.producer, c) for v in costs.values if v.producer >= 0 for c in v.consumers]
    for producer, consumer in sorted(edges, key=lambda e: e[1]):
        low[consumer] = max(low[consumer], low[producer])
    for producer, consumer in sorted(edges, key=lambda e: -e[0]):
        high[producer] = min(high[producer], high[consumer])
    return low, high


def _check_forward(costs: _core.CostGraph, pins: list[int], names: list[str]) -> None:
    """Data flows to higher stages only."""
    low = [0] * len(pins)
    source: list[int] = list(range(len(pins)))
    producers: list[list[int]] = [[] for _ in pins]
    for value in costs.values:
        if value.producer >= 0:
            for consumer in value.consumers:
                producers[consumer].append(value.producer)
    for i, pin in enumerate(pins):
        for p in producers[i]:
            if low[p] > low[i]:
                low[i], source[i] = low[p], source[p]
        if pin == FREE:
            continue
        if pin < low[i]:
            raise ValueError(
                f"{names[i]} is placed on stage {pin} but reads what {names[source[i]]} makes on "
                f"stage {low[i]}: data flows to higher stages only"
            )
        low[i], source[i] = pin, i


def _whole_groups(costs: _core.CostGraph, pins: list[int]) -> list[int]:
    """Nodes of one group stay together: a pin of one holds for all."""
    of_group: dict[int, int] = {}
    for node, pin in zip(costs.nodes, pins, strict=True):
        if node.group >= 0 and pin != FREE:
            of_group.setdefault(node.group, pin)
    return [
        of_group.get(node.group, pin) if node.group >= 0 else pin
        for node, pin in zip(costs.nodes, pins, strict=True)
    ]
