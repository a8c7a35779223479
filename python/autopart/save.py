"""autopart.save: a module, and its loss, as a file that `autopart plan` needs nothing else for."""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .trace import Trace, set_real_tensors, trace
from .tree import flatten, unflatten

Loss = Callable[..., Tensor] | str | None


def save(
    module: nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    loss: Loss = None,
    targets: Any = None,
    loss_is_sum: bool = False,
) -> None:
    """Writes `module` as a TorchScript file with its weights, input specification and loss.

    example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments; axis 0
    of each tensor is the batch, and a tensor that is passed twice (ids as inputs and as labels) is
    one input of the file. loss: called as loss(output, targets), or the key of the module's
    own loss among its results ("loss" for Hugging Face models that were given labels). With a loss
    the file's forward takes inputs and targets and returns the loss; without, the module's results.
    loss_is_sum: the loss is a sum over samples, not a mean.
    """
    captured = capture_module(
        module, example_inputs, loss=loss, targets=targets, loss_is_sum=loss_is_sum
    )
    set_real_tensors(captured, module)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.save", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.save", category=DeprecationWarning)
        torch.jit.save(
            captured.script,
            os.fspath(path),
            _extra_files={"autopart.json": json.dumps(_specification(captured))},
        )


def capture_module(
    module: nn.Module,
    example_inputs: Any,
    *,
    loss: Loss = None,
    targets: Any = None,
    loss_is_sum: bool = False,
    shapes_only: bool = False,
) -> Trace:
    """Captures module(inputs), or loss(module(inputs), targets) where a loss is given.

    shapes_only: see trace.
    """
    if targets is not None and not callable(loss):
        raise ValueError("targets were given without loss=: pass the function that takes them")
    positional = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    args, kwargs = ((), example_inputs) if isinstance(example_inputs, dict) else (positional, {})
    wanted = (tuple(args), dict(kwargs), targets)
    leaves, tree = flatten(wanted)
    values = [leaf.value for leaf in leaves]
    first: dict[int, int] = {}  # leaf at which a tensor stands first, by identity
    for i, value in enumerate(values):
        if isinstance(value, Tensor):
            first.setdefault(id(value), i)
    if not first:
        raise ValueError("example_inputs hold no tensor")
    positions = list(first.values())
    input_of_leaf = {
        i: positions.index(first[id(value)])
        for i, value in enumerate(values)
        if isinstance(value, Tensor)
    }

    def run(model: nn.Module, tensors: Sequence[Tensor]) -> tuple[Any, Tensor | None]:
        filled = list(values)
        for leaf, i in input_of_leaf.items():
            filled[leaf] = tensors[i]
        call_args, call_kwargs, call_targets = unflatten(tree, filled)
        output = model(*call_args, **call_kwargs)
        if loss is None:
            return _tensors_of(output, what), None
        if isinstance(loss, str):
            return None, _own_loss(output, loss)
        if call_targets is None:
            return None, loss(output)
        several = isinstance(call_targets, tuple)
        return None, loss(output, *call_targets) if several else loss(output, call_targets)

    what = type(module).__name__
    names = _names(module, args, kwargs, targets)
    return trace(
        module,
        run,
        [values[i] for i in positions],
        names=[names[i] for i in positions],
        batch_axes=[0 if values[i].dim() > 0 else -1 for i in positions],
        loss_is_sum=loss_is_sum,
        shapes_only=shapes_only,
        what=what,
    )


def _tensors_of(output: Any, what: str) -> Any:
    """The module's results without what is no tensor, such as a key-value cache."""
    leaves, tree = flatten(output)
    others = [leaf for leaf in leaves if leaf.value is not None and not _is_tensor(leaf.value)]
    if len(others) == len(leaves):
        return output  # the trace refuses it
    for leaf in others:
        warnings.warn(
            f"{what} returns a {type(leaf.value).__name__} (result{leaf.path}), which is left out: "
            "only tensors, and lists, tuples and dicts of them, are captured",
            stacklevel=2,
        )
    return unflatten(tree, [leaf.value if _is_tensor(leaf.value) else None for leaf in leaves])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _own_loss(output: Any, key: str) -> Tensor:
    found = output.get(key) if isinstance(output, dict) else getattr(output, key, None)
    if not isinstance(found, Tensor):
        raise ValueError(
            f"loss={key!r}: the result ({type(output).__name__}) has no tensor of that name"
        )
    return found


def _names(module: nn.Module, args: Any, kwargs: Any, targets: Any) -> list[str]:
    """A name for every leaf of (args, kwargs, targets): forward's own where it has one."""
    try:
        parameters = [
            p.name
            for p in inspect.signature(module.forward).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    roots = [parameters[i] if i < len(parameters) else f"input{i}" for i in range(len(args))]
    names: list[str] = []
    for root, value in [
        *zip(roots, args, strict=True),
        *kwargs.items(),
        ("targets", targets),
    ]:
        leaves, _ = flatten(value)
        names += [root + leaf.path for leaf in leaves]
    return names


def _specification(captured: Trace) -> dict[str, Any]:
    """The extra file autopart.json."""
    return {
        "version": 1,
        "inputs": [
            {
                "name": i.name,
                "dtype": str(i.dtype).removeprefix("torch."),
                "shape": list(i.shape),
                "bound": i.bound,
                "batch_axis": i.batch_axis,
            }
            for i in captured.inputs
        ],
        "loss": captured.loss_output,
        "loss_is_sum": captured.loss_is_sum,
        "training": captured.training,
        "strip_prefix": captured.strip_prefix,
        # Buffers that are not in the module's state_dict.
        "constants": captured.constants,
    }
