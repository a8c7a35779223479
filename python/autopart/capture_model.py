"""autopart.capture: the graph of a model whose parameters are never in memory.

The model is built on the meta device, where a tensor is a shape, and traced there: a configuration
of any size is captured on a laptop. What comes out is what costs and plans need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .captured_model import CapturedModel
from .plan import import_capture
from .save import Loss, capture_module

_RETURNS = (
    "it must return (module, example_inputs), (module, example_inputs, loss) or "
    "(module, example_inputs, loss, targets); example_inputs is a tensor, a tuple of positional "
    "arguments or a dict of keyword arguments: one micro-batch"
)


def capture(
    build_model: Callable[[], Any],
    *,
    loss: Loss = None,
    targets: Any = None,
    loss_is_sum: bool = False,
) -> CapturedModel:
    """Calls build_model() under torch.device("meta") and captures the module that it returns.

        def build_model():
            model = GPT2LMHeadModel(GPT2Config(n_layer=96, n_embd=12288, n_head=96))
            ids = torch.zeros(1, 1024, dtype=torch.long)
            return model, {"input_ids": ids, "labels": ids}, "loss"

        autopart.capture(build_model).save("model.graph.json")

    build_model returns (module, example_inputs), and after them, if it likes, loss and targets, as
    autopart.save takes them; they may be given here instead. Tensors on a real device are welcome
    and are left as they are. dtypes are the module's: call torch.set_default_dtype in build_model
    (undone at the end), or module.to(torch.bfloat16).

    Errors: TypeError where build_model cannot be called or returns something else; CaptureError
    where the module cannot be captured; build_model's own come through with their traceback.
    """
    if not callable(build_model) or isinstance(build_model, nn.Module):
        raise TypeError(
            f"capture takes a function that builds the model, not {_article(build_model)}: "
            "for a module that exists, pass lambda: (module, example_inputs)"
        )
    name = _name(build_model)
    with _default_dtype_kept():
        with torch.device("meta"):
            built = build_model()
        module, example_inputs, own_loss, own_targets = _parts(built, name)
        if own_loss is not None and loss is not None:
            raise ValueError(f"{name} returns a loss and loss= gives one: leave one of them out")
        captured = capture_module(
            module,
            example_inputs,
            loss=own_loss if own_loss is not None else loss,
            targets=own_targets if own_targets is not None else targets,
            loss_is_sum=loss_is_sum,
            shapes_only=True,
        )
    graph = import_capture(captured).graph
    captured.release()
    trained = [p for p in graph.parameters if not p.is_buffer]
    elements = [math.prod(p.sizes) for p in trained]
    return CapturedModel(
        graph=graph,
        name=type(module).__name__,
        num_operators=graph.num_nodes,
        num_parameters=sum(elements),
        parameter_bytes=sum(n * p.dtype.itemsize for n, p in zip(elements, trained, strict=True)),
    )


@contextmanager
def _default_dtype_kept() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


def _parts(built: Any, name: str) -> tuple[nn.Module, Any, Loss, Any]:
    """(module, example_inputs, loss, targets) of what build_model returned."""
    if not isinstance(built, tuple) or not 2 <= len(built) <= 4:
        what = f"a tuple of {len(built)}" if isinstance(built, tuple) else _article(built)
        raise TypeError(f"{name} returned {what}; {_RETURNS}")
    module, example_inputs, loss, targets = [*built, None, None][:4]
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{name} returned {_article(module)} where the module should be; {_RETURNS}"
        )
    if not isinstance(example_inputs, (Tensor, tuple, list, dict)):
        raise TypeError(f"{name} returned {_article(example_inputs)} as example_inputs; {_RETURNS}")
    if loss is not None and not callable(loss) and not isinstance(loss, str):
        raise TypeError(
            f"{name} returned {_article(loss)} as loss; it must be a function called as "
            'loss(output) or loss(output, targets), or the key of the module\'s own ("loss")'
        )
    return module, example_inputs, loss, targets


def _name(function: Any) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"


def _article(value: Any) -> str:
    kind = "None" if value is None else type(value).__name__
    return kind if value is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
