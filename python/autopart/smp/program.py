"""A step made runnable: captured on rank 0, planned, sent to all ranks, executed, results shared.

Every rank of the job comes here for every step. The drivers (pp_rank 0 of each replica) have data;
what rank 0 decides (a program that exists, a new capture, an error) holds for all.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import _core
from ..capture_key import Key
from ..plan import import_capture
from ..trace import Run, check_trace, trace
from ..tree import Tree
from .collectives import gather_blobs, gather_rows, share
from .model import DistributedModel
from .optimizer import live_optimizers
from .partition import following_pins, manual_pins
from .placement import (
    Operator,
    make_placement,
    named_tensors,
    operators_of,
    release_others,
    take_rank0_values,
)
from .state import state

_MAX_PROGRAMS = 16
_programs: OrderedDict[bytes, Program] = OrderedDict()


@dataclass
class Request:
    """A driver's step: how to capture it, and its data."""

    name: str
    key: Key
    run: Run
    micro_batches: list[list[Tensor]]
    names: list[str]
    axes: list[int]


@dataclass
class Result:
    """outputs[o][j]: flat output o of this replica's micro-batch j."""

    tree: Tree
    output_of_leaf: list[int | None]
    outputs: list[list[Any]]


@dataclass(frozen=True)
class _Blueprint:
    """What rank 0 sends of a new program."""

    graph: str
    plan: str
    operators: list[Operator]
    tree: Tree
    output_of_leaf: list[int | None]
    backward: bool
    loss_is_sum: bool
    seed: int


@dataclass
class Program:
    blueprint: _Blueprint
    executor: _core.RankExecutor
    num_outputs: int
    micro_batches: int


def run_step(make_request: Callable[[], Request] | None) -> Result:
    """Runs a step. make_request is None on ranks whose arguments do not count."""
    model = state.model
    assert model is not None
    request, key = _agree(make_request)
    first = model.placement is None
    program = _programs.get(key)
    if program is None:
        program = _build(model, request)
        _programs[key] = program
        if len(_programs) > _MAX_PROGRAMS:
            _programs.popitem(last=False)
            if state.rank == 0:
                warnings.warn(
                    f"the step was captured more than {_MAX_PROGRAMS} times: a shape, or a Python "
                    "number that it reads, changes from call to call; pass such numbers as tensors",
                    stacklevel=4,
                )
    else:
        _programs.move_to_end(key)
    result = _execute(program, request)
    if first:
        model.run_post_step_hooks()
    return result


@contextmanager
def _naming(action: str) -> Iterator[None]:
    """Adds to errors of the group what this rank was doing, and which stages are meant."""
    try:
        yield
    except RuntimeError as error:
        layout = state.layout
        assert layout is not None
        others = {int(r) for r in re.findall(r"\brank (\d+)", str(error))} - {state.rank}
        where = "".join(f"; rank {r} is stage {layout.pp_rank(r)}" for r in sorted(others))
        raise RuntimeError(
            f"rank {state.rank}, stage {state.pp_rank}, {action} (step {state.steps}): "
            f"{error}{where}"
        ) from error


def forget_programs() -> None:
    _programs.clear()


def _agree(make_request: Callable[[], Request] | None) -> tuple[Request | None, bytes]:
    """One small all-gather: do all drivers have a step, and the same one? Else the same error."""
    request, error = None, None
    shared = full = bytes(16)
    if make_request is not None:
        try:
            request = make_request()
            shared, full = request.key.digests()
        except Exception as caught:
            error = caught
    world = list(range(state.comm.size))
    # 0: no driver, 1: driver with a step, 2: error
    status = 2 if error is not None else int(request is not None)
    mine = torch.frombuffer(bytearray([status]) + shared + full, dtype=torch.uint8)
    with _naming("agreeing on the next step"):
        rows = gather_rows(world, mine)
    if bool((rows[:, 0] == 2).any()):
        _raise_first(world, error)
    drivers = [rank for rank in world if rows[rank, 0] == 1]
    for rank in drivers:
        if not torch.equal(rows[rank, 1:17], rows[0, 1:17]):
            raise ValueError(
                f"rank {rank} and rank 0 run different steps: shapes, modes and the Python numbers "
                "that a step reads must agree between replicas"
            )
    return request, bytes(rows[0, 17:].tolist())


def _raise_first(world: list[int], error: Exception | None) -> None:
    """Raises the own error, else the first that another rank had."""
    text = b"" if error is None else f"{type(error).__name__}: {error}".encode()
    blobs = gather_blobs(world, torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8))
    if error is not None:
        raise error
    for rank, blob in blobs.items():
        message = bytes(blob.tolist())
        if message != b"\0":
            raise ValueError(f"rank {rank}: {message.decode()}")


def _build(model: DistributedModel, request: Request | None) -> Program:
    """Capture and plan on rank 0; then every rank makes its executor. The first time, parameters
    move to where the plan wants them."""
    world = list(range(state.comm.size))
    answer: _Blueprint | str = ""
    error: Exception | None = None
    if state.rank == 0:
        assert request is not None
        try:
            answer = _draw_up(model, request)
        except Exception as caught:
            error, answer = caught, f"{type(caught).__name__}: {caught}"
    with _naming("sharing the plan of rank 0"):
        answer = share(answer, 0, world)
    if error is not None:
        raise error
    if isinstance(answer, str):
        raise ValueError(f"rank 0: {answer}")
    return _set_up(model, answer)


def _draw_up(model: DistributedModel, request: Request) -> _Blueprint:
    module = model.get_module()
    example = request.micro_batches[0]
    captured = trace(
        module,
        request.run,
        example,
        names=request.names,
        batch_axes=request.axes,
        loss_is_sum=not model.average_grads_across_microbatches,
        what=request.name,
    )
    backward = captured.loss_output is not None
    graph = import_capture(captured).graph
    if not model.partitioned:
        check_trace(captured, module, request.run, example, request.name)
    captured.release()  # nothing of it may hold parameters when they leave
    costs = _core.build_cost_graph(graph, state.cfg.device or "", backward)
    return _Blueprint(
        graph=graph.to_json(),
        plan=_plan(model, graph, costs, backward).to_json(),
        operators=operators_of(graph, costs),
        tree=captured.outputs,
        output_of_leaf=captured.output_of_leaf,
        backward=backward,
        loss_is_sum=captured.loss_is_sum,
        seed=(torch.initial_seed() if state.cfg.seed is None else state.cfg.seed) & (2**64 - 1),
    )


def _plan(
    model: DistributedModel, graph: _core.OpGraph, costs: _core.CostGraph, backward: bool
) -> _core.Plan:
    cfg, layout = state.cfg, state.layout
    assert layout is not None
    micro_batches = cfg.microbatches * layout.dp_size
    if cfg.plan is not None and backward and not model.partitioned:
        return _with_ranks_of_layout(_given_plan(cfg.plan, graph, micro_batches))
    pins: Sequence[int] = ()
    if model.placement is not None:
        pins = following_pins(costs, graph, model.placement)
    elif not cfg.auto_partition:
        pins = manual_pins(costs, model.get_module())
    plan = _core.make_plan(
        costs,
        _core.Cluster.uniform(cfg.device or "cpu", layout.world_size),
        _core.PlannerOptions(
            stages=layout.pp_size,
            replicas=layout.dp_size,
            micro_batches=micro_batches,
            schedule=state.schedule if backward else "forward",
            optimizer=cfg.optimizer,
            training=backward,
            pinned_stage_of_node=pins,
        ),
    )
    return _with_ranks_of_layout(plan)


def _given_plan(path: str, graph: _core.OpGraph, micro_batches: int) -> _core.Plan:
    layout = state.layout
    assert layout is not None
    plan = _core.Plan.from_json(Path(path).read_text())
    if plan.model_hash != graph.hash:
        raise ValueError(
            f"{path} is a plan for another model (hash {plan.model_hash}, this step's is "
            f"{graph.hash}): plan the file that autopart.save made of this model, loss and shapes"
        )
    for what, planned, here in (
        ("stages", len(plan.stages), layout.pp_size),
        ("replicas", len(plan.stages[0].ranks), layout.dp_size),
        ("micro-batches", plan.micro_batches, micro_batches),
    ):
        if planned != here:
            raise ValueError(f"{path} has {planned} {what}, this job has {here}")
    return plan


def _with_ranks_of_layout(plan: _core.Plan) -> _core.Plan:
    """Replica d of stage p is on the rank that the placement strategy says."""
    layout = state.layout
    assert layout is not None
    decisions = json.loads(plan.to_json())
    for index, stage in enumerate(decisions["stages"]):
        stage["ranks"] = layout.dp_group(index)
    return _core.Plan.from_json(json.dumps(decisions))


def _set_up(model: DistributedModel, blueprint: _Blueprint) -> Program:
    graph = _core.OpGraph.from_json(blueprint.graph)
    plan = _core.Plan.from_json(blueprint.plan)
    module = model.get_module()
    tensors = _same_everywhere(module, graph)
    if not model.partitioned:
        placement = make_placement(graph, plan, blueprint.operators)
        take_rank0_values(placement, tensors)
        release_others(placement, module, tensors, live_optimizers())
        model.set_placement(placement)
    stage = plan.stages[state.pp_rank]
    names = [parameter.name for parameter in graph.parameters]
    indices = (*stage.owned_parameters, *stage.copied_parameters)
    held = [names[i] for i in indices if i < len(names)]
    absent = [name for name in held if tensors[name].is_meta and _is_used(graph, name)]
    if absent:
        raise RuntimeError(f"the plan wants {absent[0]} on stage {state.pp_rank}, it is elsewhere")
    executor = _core.RankExecutor(
        graph,
        plan,
        state.rank,
        {name: tensors[name] for name in held},
        state.comm,
        deadline_s=state.cfg.deadline,
        seed=blueprint.seed,
        check_finite=state.cfg.check_finite,
    )
    return Program(blueprint, executor, graph.num_outputs, plan.micro_batches)


def _is_used(graph: _core.OpGraph, name: str) -> bool:
    return any(p.name == name and p.used for p in graph.parameters)


def _same_everywhere(module: nn.Module, graph: _core.OpGraph) -> dict[str, Tensor]:
    """This rank's tensors by global name; an error on all ranks where one has another model."""
    problem = ""
    tensors: dict[str, Tensor] = {}
    try:
        tensors = named_tensors(module, graph)
    except KeyError as error:
        problem = f"rank {state.rank} has no parameter {error}"
    for parameter in graph.parameters:
        tensor = tensors.get(parameter.name)
        if tensor is None or problem:
            continue
        if list(tensor.shape) != parameter.sizes or tensor.dtype != parameter.dtype:
            problem = (
                f"rank {state.rank} has {parameter.name} as {tensor.dtype}{list(tensor.shape)}, "
                f"rank 0 as {parameter.dtype}{parameter.sizes}"
            )
    world = list(range(state.comm.size))
    blobs = gather_blobs(
        world, torch.frombuffer(bytearray(problem.encode() + b"\0"), dtype=torch.uint8)
    )
    for blob in blobs.values():
        message = bytes(blob.tolist())[:-1].decode()
        if message:
            raise ValueError(f"the ranks have different models: {message}")
    return tensors


def _execute(program: Program, request: Request | None) -> Result:
    layout = state.layout
    assert layout is not None
    count = program.micro_batches
    inputs: list[list[Tensor]] = [[] for _ in range(count)]
    if request is not None:
        for local, tensors in enumerate(request.micro_batches):
            inputs[local * layout.dp_size + state.dp_rank] = tensors
    weight = 1.0 if program.blueprint.loss_is_sum else 1.0 / count
    backward = program.blueprint.backward
    output = program.executor.step(
        state.steps,
        training=True,  # modes are as captured
        backward=backward,
        inputs=inputs,
        weights=[weight] * count,
        communicator=state.comm,
    )
    if backward:
        state.steps += 1
    mine = range(state.dp_rank, count, layout.dp_size)
    with _naming("sharing the step's results"):
        outputs = _share_outputs([output.outputs[j] for j in mine], program.num_outputs)
    return Result(program.blueprint.tree, program.blueprint.output_of_leaf, outputs)


def _share_outputs(made: list[list[Any]], num_outputs: int) -> list[list[Any]]:
    """From made[j][o], None where another stage made it, to outputs[o][j] on every rank."""
    layout = state.layout
    assert layout is not None
    outputs: list[list[Any]] = [[None] * len(made) for _ in range(num_outputs)]
    for j, row in enumerate(made):
        for o, value in enumerate(row):
            outputs[o][j] = value
    group = sorted(layout.pp_group(state.dp_rank))
    if len(group) == 1:
        return outputs
    for rank, blob in gather_blobs(group, _pack(outputs)).items():
        if rank != state.rank and blob.numel():
            _unpack(blob, outputs)
    return outputs


def _pack(outputs: list[list[Any]]) -> Tensor:
    """Length of the header, header (place, dtype, shape of each tensor; other values), bytes."""
    header: list[Any] = []
    data: list[Tensor] = []
    for o, row in enumerate(outputs):
        for j, value in enumerate(row):
            if isinstance(value, Tensor):
                header.append((o, j, value.dtype, tuple(value.shape)))
                data.append(value.detach().contiguous().reshape(-1).view(torch.uint8))
            elif value is not None:
                header.append((o, j, None, value))
    if not header:
        return torch.empty(0, dtype=torch.uint8)
    text = pickle.dumps(header)
    start = len(text).to_bytes(8, "little") + text
    return torch.cat([torch.frombuffer(bytearray(start), dtype=torch.uint8), *data])


def _unpack(blob: Tensor, outputs: list[list[Any]]) -> None:
    size = int.from_bytes(bytes(blob[:8].tolist()), "little")
    at = 8 + size
    for o, j, dtype, shape in pickle.loads(bytes(blob[8:at].tolist())):
        if dtype is None:
            outputs[o][j] = shape
            continue
        value = torch.empty(shape, dtype=dtype)
        end = at + value.numel() * value.element_size()
        value.reshape(-1).view(torch.uint8).copy_(blob[at:end])
        outputs[o][j] = value
        at = end
