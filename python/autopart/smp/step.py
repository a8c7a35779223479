"""@smp.step: a function that the pipeline runs once a micro-batch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..capture_key import capture_key
from ..tree import Tree, flatten, unflatten
from .program import Request, run_step
from .state import state


def step(
    function: Callable[..., Any] | Sequence[str] | None = None,
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: dict[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Decorates a step: forward, or forward and model.backward(loss). Bare or called.

    Every tensor argument is split along axis 0 (input_split_axes names others) into `microbatches`
    equal parts; non_split_inputs are given whole. Only pp_rank 0's data counts. Each tensor that
    the function returns comes back as a StepOutput, detached, equal on all ranks of the pipeline.
    """
    if function is not None and not callable(function):
        non_split_inputs, function = function, None
    if function is None:
        return lambda f: StepFunction(f, non_split_inputs, input_split_axes or {})
    return StepFunction(function, non_split_inputs, input_split_axes or {})


class StepOutput:
    """A result of a step, one entry for each micro-batch of this replica, in order."""

    def __init__(self, outputs: list[Tensor]) -> None:
        self.outputs = outputs

    def reduce_sum(self) -> Tensor:
        return functools.reduce(torch.add, self.outputs)

    def reduce_mean(self) -> Tensor:
        """Sum of the entries, each divided by their number: as the step's loss is summed."""
        weight = 1.0 / len(self.outputs)
        return functools.reduce(torch.add, [output * weight for output in self.outputs])

    def concat(self) -> Tensor:
        return torch.cat(self.outputs)

    def stack(self) -> Tensor:
        return torch.stack(self.outputs)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


class StepFunction:
    """A decorated step. Not a descriptor: inside a class it does not bind self."""

    def __init__(
        self,
        function: Callable[..., Any],
        non_split_inputs: Sequence[str],
        input_split_axes: dict[str, int],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._whole = frozenset(non_split_inputs)
        self._axes = dict(input_split_axes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.model is None:
            raise RuntimeError("a step needs a model: wrap it in smp.DistributedModel first")
        # Other ranks' arguments may be dummies: they are not even looked at.
        make = (lambda: self._request(args, kwargs)) if state.pp_rank == 0 else None
        result = run_step(make)
        leaves = [
            None if index is None else StepOutput(result.outputs[index])
            for index in result.output_of_leaf
        ]
        return unflatten(result.tree, leaves)

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        model = state.model
        assert model is not None
        name = getattr(self._function, "__name__", "step")
        arguments = _split(self._function, args, kwargs, self._whole, self._axes, name)
        key = capture_key(
            self._function,
            [*arguments.micro_batches[0], *arguments.constants],
            model.get_module(),
            arguments.axes,
        )

        def run(twin: nn.Module, tensors: Sequence[Tensor]) -> tuple[Any, Tensor | None]:
            call_args, call_kwargs = arguments.fill(tensors)
            with model.capturing(twin) as recorded:
                results = self._function(*call_args, **call_kwargs)
            return results, recorded.loss

        return Request(name, key, run, arguments.micro_batches, arguments.names, arguments.axes)


@dataclass
class _Arguments:
    """A call taken apart: distinct tensors, split; where they stand; everything else."""

    tree: Tree
    leaves: list[Any]
    input_of_leaf: dict[int, int]
    names: list[str]
    axes: list[int]
    micro_batches: list[list[Tensor]]

    @property
    def constants(self) -> list[Any]:
        return [
            leaf
            for i, leaf in enumerate(self.leaves)
            if i not in self.input_of_leaf and leaf is not state.model
        ]

    def fill(self, tensors: Sequence[Tensor]) -> Any:
        filled = list(self.leaves)
        for leaf, index in self.input_of_leaf.items():
            filled[leaf] = tensors[index]
        return unflatten(self.tree, filled)


def _split(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    whole: frozenset[str],
    axes: dict[str, int],
    name: str,
) -> _Arguments:
    bound = inspect.signature(function).bind(*args, **kwargs)
    unknown = (whole | set(axes)) - set(bound.signature.parameters)
    if unknown:
        raise ValueError(f"{name} has no argument {sorted(unknown)[0]!r} to split or not to split")
    leaves, tree = flatten((bound.args, bound.kwargs))
    roots = _roots(bound)
    tensors: list[Tensor] = []
    names: list[str] = []
    split_axes: list[int] = []
    input_of_leaf: dict[int, int] = {}
    index_of: dict[tuple[int, int], int] = {}
    for i, (leaf, root) in enumerate(zip(leaves, roots, strict=True)):
        if hasattr(leaf.value, "smp_slice"):
            raise NotImplementedError(
                f"{name}: arguments with smp_slice ({root}) are not supported"
            )
        if not isinstance(leaf.value, Tensor):
            continue
        axis = -1 if root in whole or leaf.value.dim() == 0 else axes.get(root, 0)
        index = index_of.setdefault((id(leaf.value), axis), len(tensors))
        input_of_leaf[i] = index
        if index == len(tensors):
            tensors.append(leaf.value)
            names.append(root if root not in names else f"{root}{index}")
            split_axes.append(axis)
    if not tensors:
        raise ValueError(f"{name} was given no tensor: nothing to split into micro-batches")
    count = state.cfg.microbatches
    parts = [
        _parts(tensor.detach(), axis, count, f"{name}: {tensor_name}")
        for tensor, axis, tensor_name in zip(tensors, split_axes, names, strict=True)
    ]
    micro_batches = [[part[j] for part in parts] for j in range(count)]
    return _Arguments(
        tree, [leaf.value for leaf in leaves], input_of_leaf, names, split_axes, micro_batches
    )


def _roots(bound: inspect.BoundArguments) -> list[str]:
    """The argument that each leaf of (args, kwargs) belongs to."""
    roots: list[str] = []
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            for key, item in value.items():
                roots += [key] * len(flatten(item)[0])
        else:
            roots += [name] * len(flatten(value)[0])
    return roots


def _parts(tensor: Tensor, axis: int, count: int, what: str) -> list[Tensor]:
    if axis < 0:
        return [tensor] * count
    if axis >= tensor.dim():
        raise ValueError(f"{what} has {tensor.dim()} axes and cannot be split along axis {axis}")
    if tensor.shape[axis] % count or tensor.shape[axis] == 0:
        raise ValueError(
            f"{what} has {tensor.shape[axis]} rows along axis {axis}, which do not divide into "
            f"{count} micro-batches: use drop_last=True in the data loader, or another batch size"
        )
    size = tensor.shape[axis] // count
    return [tensor.narrow(axis, j * size, size).contiguous() for j in range(count)]
