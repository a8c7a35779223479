"""Trace: a module and the Python around it become a TorchScript trace.

The trace runs on a meta copy of the module, so it costs neither memory nor arithmetic, leaves
random generators and BatchNorm alone, and a branch on a tensor's value raises instead of being
baked in.
What a meta run may still freeze are Python values made from shapes; captures are therefore keyed by
shapes (capture_key.py). Real tensors are used, on a copy, only where the meta device cannot follow:
an operator without a meta kernel, a tensor of the closure that is not on meta, autocast.
"""

from __future__ import annotations

import copy
import functools
import math
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .gradient_cuts import cut_gradients
from .index_bounds import index_bounds
from .meta import meta_like, meta_twin, unalias
from .tree import Tree, flatten

# A trace's module holds the user's under this name; its parameters are "model.<user's name>".
STRIP_PREFIX = "model."

# Runs the code to capture on a copy of the module: (results, loss or None).
Run = Callable[[nn.Module, Sequence[Tensor]], "tuple[Any, Tensor | None]"]


@dataclass(frozen=True)
class Input:
    """What a traced input looks like. `bound`: exclusive, of integers that index something."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bound: int | None = None
    batch_axis: int = 0  # that micro-batches split; -1: given whole


@dataclass
class Trace:
    """A traced module with what its flat inputs and outputs mean."""

    script: torch.jit.ScriptModule
    inputs: list[Input]
    outputs: Tree  # leaves are indices into the trace's outputs or None
    output_of_leaf: list[int | None]
    loss_output: int | None
    loss_is_sum: bool
    training: bool
    constants: list[str]  # buffers that are not in the state_dict
    on_meta: bool = True
    strip_prefix: str = STRIP_PREFIX

    def release(self) -> None:
        """Drops the trace, and with it whatever tensors it holds."""
        del self.script


class CaptureError(ValueError):
    """The code cannot be captured; the message names the line and what to do."""


def trace(
    module: nn.Module,
    run: Run,
    examples: Sequence[Tensor],
    *,
    names: Sequence[str] | None = None,
    batch_axes: Sequence[int] | None = None,
    loss_is_sum: bool = False,
    shapes_only: bool = False,
    what: str = "the model",
) -> Trace:
    """Traces `run` on a copy of `module` with tensors like `examples`.

    `what` names the captured code in messages. shapes_only: the trace is for costs and plans, so
    that constants of a module on meta may do without values. Raises CaptureError for code that a
    trace would get wrong; errors of the code itself come through unchanged.
    """
    examples = list(examples)
    names = list(names) if names is not None else [f"input{i}" for i in range(len(examples))]
    axes = list(batch_axes) if batch_axes is not None else [0] * len(examples)
    try:
        with _watch_autocast() as autocast:
            twin = unalias(meta_twin(module))
            traced = _trace_body(twin, run, [meta_like(t) for t in examples], what, True)
        lacks_values = _has_meta_constant(traced[0])
        if lacks_values and not (shapes_only and any(t.is_meta for t in _tensors(module))):
            raise _NeedsRealTensors("a tensor of the module is neither parameter nor buffer")
        if autocast.used:  # autocast does not see meta tensors
            raise _NeedsRealTensors("autocast is on")
    except _NeedsRealTensors as reason:
        if any(t.is_meta for t in [*examples, *module.parameters(), *module.buffers()]):
            raise CaptureError(
                f"{what} cannot be captured without real tensors ({reason}), and the model is on "
                'the meta device; give it real parameters (torch.device("cpu") where it is built)'
            ) from reason.__cause__
        with torch.random.fork_rng(devices=[]):
            copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in examples]
            traced = _trace_body(unalias(copy.deepcopy(module)), run, copies, what, False)
    script, body = traced
    bounds = index_bounds(script)
    assert body.outputs is not None
    return Trace(
        script=script,
        inputs=[
            Input(name, t.dtype, tuple(t.shape), None if _is_float(t) else bound, axis)
            for name, t, bound, axis in zip(names, examples, bounds, axes, strict=True)
        ],
        outputs=body.outputs,
        output_of_leaf=body.output_of_leaf,
        loss_output=body.loss_output,
        loss_is_sum=loss_is_sum,
        training=module.training,
        constants=_not_in_state_dict(module),
        on_meta=body.on_meta,
    )


def check_trace(
    captured: Trace, module: nn.Module, run: Run, examples: Sequence[Tensor], what: str
) -> None:
    """Runs the trace and the code itself on real tensors; raises where the loss differs.

    Buffers and random generators are left as they were.
    """
    if captured.loss_output is None or any(t.is_meta for t in _tensors(module)):
        return
    set_real_tensors(captured, module)
    seed = torch.initial_seed()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _kept(module.buffers()):
        torch.manual_seed(seed)
        traced = captured.script(*examples)[captured.loss_output]
    with torch.random.fork_rng(devices=[]), _kept(module.buffers()):
        torch.manual_seed(seed)
        _, loss = run(module, examples)
    assert loss is not None
    tolerance = (
        1e-6 if loss.dtype == torch.float64 else 1e-3 if loss.dtype == torch.float32 else 0.1
    )
    difference = abs(traced.item() - loss.item())
    if not difference <= tolerance * max(1.0, abs(loss.item())) and math.isfinite(loss.item()):
        raise CaptureError(
            f"{what}: the captured code gives a loss of {traced.item()}, the code itself "
            f"{loss.item()}: it reads something that capture does not see (state that changes from "
            "call to call, a generator of its own)"
        )


@contextmanager
def _kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in saved:
                tensor.copy_(value)


class _NeedsRealTensors(Exception):
    pass


class _Body(nn.Module):
    """What is traced: flat tensors in, flat tensors out; remembers the structure of the results."""

    def __init__(self, model: nn.Module, run: Run, what: str, on_meta: bool) -> None:
        super().__init__()
        self.model = model
        self._run = run
        self._what = what
        self.on_meta = on_meta
        self.outputs: Tree | None = None
        self.output_of_leaf: list[int | None] = []
        self.loss_output: int | None = None

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        results, loss = self._run(self.model, tensors)
        leaves, self.outputs = flatten(results)
        flat: list[Tensor] = []
        self.output_of_leaf = []
        for leaf in leaves:
            if leaf.value is None:
                self.output_of_leaf.append(None)
                continue
            if not isinstance(leaf.value, Tensor):
                raise CaptureError(
                    f"{self._what} returns a {type(leaf.value).__name__} (result{leaf.path}); only "
                    "tensors, and lists, tuples and dicts of them, can come back from a captured "
                    "step: return the tensor, and read its value from the step's result"
                )
            self.output_of_leaf.append(_place(leaf.value, flat))
        if loss is not None:
            if loss.numel() != 1:
                raise CaptureError(
                    f"the loss of {self._what} has shape {list(loss.shape)}, not one element"
                )
            self.loss_output = _place(loss, flat)
        if not flat:
            raise CaptureError(f"{self._what} returns no tensor and has no loss: nothing to run")
        return tuple(flat)


def _place(tensor: Tensor, flat: list[Tensor]) -> int:
    for i, other in enumerate(flat):
        if other is tensor:
            return i
    flat.append(tensor)
    return len(flat) - 1


def _trace_body(
    model: nn.Module, run: Run, examples: list[Tensor], what: str, on_meta: bool
) -> tuple[torch.jit.ScriptModule, _Body]:
    body = _Body(model, run, what, on_meta)
    body.training = model.training
    watch = nullcontext() if on_meta else _ValueReads([*examples, *_tensors(model)], what)
    with (
        warnings.catch_warnings(record=True) as caught,
        _no_backward(what),
        _traced_convolutions(),
        watch,
    ):
        warnings.simplefilter("always")
        try:
            script = torch.jit.trace(
                body, tuple(examples), strict=False, check_trace=False, _store_inputs=False
            )
        except CaptureError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            _explain(error, what, on_meta)
            raise
    # Tracing reads every attribute of every module: a property that warns does so many times.
    shown = set()
    for warning in caught:
        if issubclass(warning.category, TracerWarning):
            if not str(warning.message).startswith(_SHAPE_WARNINGS):
                raise CaptureError(
                    f"{what} cannot be captured: {warning.filename}:{warning.lineno}: "
                    f"{str(warning.message).splitlines()[0]}"
                )
        elif not _of_jit(warning) and (str(warning.message), warning.lineno) not in shown:
            shown.add((str(warning.message), warning.lineno))
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if on_meta:
        _make_empty_constants_real(script)
    if torch.is_grad_enabled():
        cut_gradients(script)
    if on_meta:
        _set_device(script, "cpu")  # before anything inlines a copy of these graphs
    return script, body


def _explain(error: BaseException, what: str, on_meta: bool) -> None:
    """Turns the errors of meta tensors into ours; returns for errors of the code itself."""
    message = str(error)
    if "item() cannot be called on meta" in message:
        line = _innermost(traceback.extract_tb(error.__traceback__))
        raise CaptureError(_reads_value(what, line)) from error
    if on_meta and (isinstance(error, NotImplementedError) or "meta" in message):
        raise _NeedsRealTensors(message.splitlines()[0]) from error


def _reads_value(what: str, line: str) -> str:
    return (
        f"{what} cannot be captured: {line} reads the value of a tensor (.item(), float(), bool() "
        "or a branch on it). A captured step runs the same operators for every batch: use "
        "torch.where, or return the tensor and read it from the step's result"
    )


def _innermost(stack: Sequence[traceback.FrameSummary]) -> str:
    """file:line of the innermost frame that is neither torch's nor ours."""
    ours, torchs = os.path.dirname(__file__), os.path.dirname(torch.__file__)
    frames = [frame for frame in stack if not frame.filename.startswith((ours, torchs))]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the code"


# Conversions of a tensor to a Python value. Only what comes from shapes gets that far: reading any
# other value raises, on meta by itself and on real tensors by _ValueReads.
_SHAPE_WARNINGS = (
    "Converting a tensor to a Python boolean",
    "Converting a tensor to a Python integer",
    "Converting a tensor to a Python float",
    "Converting a tensor to a Python index",
    "Converting a tensor to a Python number",
    "Using len to get tensor shape",
    "Iterating over a tensor",
    "torch.tensor results are registered as constants",
    "torch.as_tensor results are registered as constants",
)


@contextmanager
def _traced_convolutions() -> Iterator[None]:
    """Meanwhile torch.conv2d and its kin call aten::_convolution: what a trace records of them.

    They record it from inside a kernel that a Python meta kernel or a dispatch mode replaces, and
    then nothing is recorded; and where it is, without its requires_grad.
    """
    saved: list[tuple[Any, str, Any]] = []
    for dims in (1, 2, 3):
        for name, transposed in ((f"conv{dims}d", False), (f"conv_transpose{dims}d", True)):
            for module in (torch, torch.nn.functional):
                saved.append((module, name, getattr(module, name)))
                setattr(module, name, functools.partial(_convolve, dims, transposed))
    try:
        yield
    finally:
        for module, name, function in saved:
            setattr(module, name, function)


def _convolve(dims: int, transposed: bool, *args: Any, **kwargs: Any) -> Tensor:
    bind = _bind_transposed_convolution if transposed else _bind_convolution
    input, weight, bias, stride, padding, output_padding, groups, dilation = bind(*args, **kwargs)
    if isinstance(padding, str):
        input, padding = _pad(input, weight, dilation, padding, dims)
    sizes = [_repeat(v, dims) for v in (stride, padding, dilation, output_padding)]
    unbatched = input.dim() == dims + 1
    result: Tensor = torch._convolution(
        input.unsqueeze(0) if unbatched else input,
        weight,
        bias,
        *sizes[:3],
        transposed,
        sizes[3],
        groups,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.allow_tf32,
    )
    return result.squeeze(0) if unbatched else result


def _bind_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...]:
    return input, weight, bias, stride, padding, 0, groups, dilation


def _bind_transposed_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> tuple[Any, ...]:
    return input, weight, bias, stride, padding, output_padding, groups, dilation


def _pad(
    input: Tensor, weight: Tensor, dilation: Any, padding: str, dims: int
) -> tuple[Tensor, list[int]]:
    """padding="same" or "valid" as numbers; what is not symmetric is added on the right."""
    if padding == "valid":
        return input, [0] * dims
    kernel = [int(size) for size in weight.shape[2:]]
    both = [d * (k - 1) for d, k in zip(_repeat(dilation, dims), kernel, strict=True)]
    if any(total % 2 for total in both):
        right = [end for total in reversed(both) for end in (0, total % 2)]
        input = torch.nn.functional.pad(input, right)
    return input, [total // 2 for total in both]


def _repeat(value: Any, dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


class _ValueReads(TorchDispatchMode):
    """Refuses to read a value that depends on `data`: what the meta device does by its nature."""

    def __init__(self, data: Sequence[Tensor], what: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what = what
        self._held = [t.untyped_storage() for t in data]  # keeps the addresses from being reused
        self._tainted = {storage._cdata for storage in self._held}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = pytree.tree_leaves((args, kwargs))
        tainted = any(
            isinstance(t, Tensor) and t.untyped_storage()._cdata in self._tainted for t in operands
        )
        if tainted and func is torch.ops.aten._local_scalar_dense.default:
            line = _innermost(traceback.extract_stack())
            raise CaptureError(_reads_value(self._what, line))
        result = func(*args, **(kwargs or {}))
        if tainted:
            for tensor in pytree.tree_leaves(result):
                if isinstance(tensor, Tensor):
                    self._held.append(tensor.untyped_storage())
                    self._tainted.add(self._held[-1]._cdata)
        return result


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _of_jit(warning: warnings.WarningMessage) -> bool:
    return issubclass(warning.category, (FutureWarning, DeprecationWarning)) and (
        "torch.jit" in str(warning.message)
    )


@contextmanager
def _no_backward(what: str) -> Iterator[None]:
    """loss.backward() inside captured code would run autograd in the middle of a trace."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise CaptureError(
            f"{what} calls backward of torch; call model.backward(loss) of the DistributedModel"
        )

    saved = torch.Tensor.backward, torch.autograd.backward
    torch.Tensor.backward = refuse  # type: ignore[method-assign]
    torch.autograd.backward = refuse
    try:
        yield
    finally:
        torch.Tensor.backward, torch.autograd.backward = saved  # type: ignore[method-assign]


class _AutocastWatch:
    used = False


@contextmanager
def _watch_autocast() -> Iterator[_AutocastWatch]:
    """Notices autocast that is on, or is entered meanwhile."""
    watch = _AutocastWatch()
    watch.used = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    enter = torch.autocast.__enter__

    def watching_enter(self: Any) -> Any:
        watch.used = watch.used or bool(self._enabled)
        return enter(self)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = watching_enter  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def graphs_of(script: torch.jit.ScriptModule) -> Iterator[Any]:
    """The graphs of a traced module and its submodules, for reading and rewriting."""
    for module in script.modules():
        handle = getattr(module, "_c", None)
        if handle is not None:
            for name in handle._method_names():  # forward1, ... where a module is called again
                yield handle._get_method(name).graph


def nodes_of(block: Any) -> Iterator[Any]:
    """All nodes of a graph or block, nested ones included."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def tensors_by_path(module: nn.Module) -> dict[str, Tensor]:
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    named.update(module.named_buffers(remove_duplicate=False))
    return named


def _not_in_state_dict(module: nn.Module) -> list[str]:
    kept = set(module.state_dict(keep_vars=True))
    return [name for name in tensors_by_path(module) if name not in kept]


def set_real_tensors(captured: Trace, module: nn.Module) -> None:
    """Puts the module's tensors where the trace has meta twins. Shared ones stay shared."""
    scripts = dict(captured.script.named_modules(remove_duplicate=False))
    for name, tensor in tensors_by_path(module).items():
        if tensor.is_meta:
            raise ValueError(f"{name} is on the meta device: a file needs its values")
        owner, _, attribute = (captured.strip_prefix + name).rpartition(".")
        handle = scripts[owner]._c
        if handle.hasattr(attribute):
            handle.setattr(attribute, tensor)


def _set_device(script: torch.jit.ScriptModule, device: str) -> None:
    """Device constants of a trace on meta say meta; it is to run elsewhere."""
    for graph in graphs_of(script):
        for node in nodes_of(graph):
            if (
                node.kind() == "prim::Constant"
                and isinstance(node.output().type(), torch._C.DeviceObjType)
                and node.hasAttribute("value")
                and node.s("value") == "meta"
            ):
                node.s_("value", device)


def _make_empty_constants_real(script: torch.jit.ScriptModule) -> None:
    """A tensor without elements has no values to miss: key-value caches start with such."""
    for node in _tensor_constants(script):
        value = node.output().toIValue()
        if value.is_meta and value.numel() == 0:
            node.t_("value", torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))


def _has_meta_constant(script: torch.jit.ScriptModule) -> bool:
    return any(node.output().toIValue().is_meta for node in _tensor_constants(script))


def _tensor_constants(script: torch.jit.ScriptModule) -> Iterator[Any]:
    for graph in graphs_of(script):
        for node in nodes_of(graph):
            if (
                node.kind() == "prim::Constant"
                and node.hasAttribute("value")
                and isinstance(node.output().toIValue(), Tensor)
            ):
                yield node


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
