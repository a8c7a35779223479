"""smp.DistributedModel: the user's module, its parameters spread over the ranks of a pipeline."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .clip import install_clipping
from .placement import Placement, receive_missing
from .state import state

Hook = Callable[["DistributedModel", Any], None]


@dataclass
class _Capturing:
    """While a step is captured: what runs in the module's place, and the loss so far."""

    twin: nn.Module
    loss: Tensor | None = None


class DistributedModel(nn.Module):
    """Wraps a module for steps of @smp.step. One a process.

    The parameters stay the user's own objects. At the first step every rank takes rank 0's values;
    after it a rank holds only its stages' parameters and buffers, the others are meta tensors.
    Names are those of the user's module.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: int = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        """average_grads_across_microbatches: False for losses that sum over samples.

        The other arguments are SMP's and have no effect: gradients are reduced at the end of every
        step and add up until zero_grad.
        """
        if not state.initialized:
            raise RuntimeError("call smp.init() before making a DistributedModel")
        if isinstance(module, DistributedModel):
            raise ValueError("the model is a DistributedModel already")
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"DistributedModel takes a torch.nn.Module, not {type(module).__name__}"
            )
        if state.model is not None:
            raise RuntimeError("there is one DistributedModel a process, and one lives already")
        super().__init__()
        self.module = module
        self.training = module.training
        self.average_grads_across_microbatches = average_grads_across_microbatches
        self._capturing: _Capturing | None = None
        self._placement: Placement | None = None
        self._post_partition_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._post_step_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._optimizer: Any = None
        state.set_model(self)
        install_clipping()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._capturing is not None:
            return self._capturing.twin(*args, **kwargs)
        if state.layout is not None and state.layout.world_size == 1:
            return self.module(*args, **kwargs)
        raise RuntimeError("call the model inside a function decorated with @smp.step")

    def backward(self, tensors: Tensor, grad_tensors: Any = None) -> None:
        """The step's loss; several calls in one step add up."""
        capturing = self._capturing
        if capturing is None:
            raise RuntimeError("call model.backward inside a function decorated with @smp.step")
        if grad_tensors is not None or not isinstance(tensors, Tensor):
            raise ValueError("model.backward takes one loss tensor and no grad_tensors")
        if not torch.is_grad_enabled():
            raise RuntimeError("model.backward was called in a step under torch.no_grad()")
        capturing.loss = tensors if capturing.loss is None else capturing.loss + tensors

    @contextmanager
    def capturing(self, twin: nn.Module) -> Iterator[_Capturing]:
        """Meanwhile the twin runs in the module's place, and backward records the loss."""
        self._capturing = _Capturing(twin)
        state.tracing = True
        try:
            yield self._capturing
        finally:
            self._capturing = None
            state.tracing = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            capturing = self.__dict__.get("_capturing")
            module = super().__getattr__("module") if capturing is None else capturing.twin
            return getattr(module, name)

    def get_module(self) -> nn.Module:
        """The user's module."""
        return self.module

    # Names without a prefix of ours.

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self.module.named_buffers(*args, **kwargs)

    @property
    def partitioned(self) -> bool:
        """Whether the first step has spread the parameters."""
        return self._placement is not None

    @property
    def placement(self) -> Placement | None:
        return self._placement

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those that this rank holds; all before the first step."""
        return ((n, p) for n, p in self.named_parameters() if self._is_local(n))

    def local_parameters(self) -> Iterator[nn.Parameter]:
        return (p for _, p in self.local_named_parameters())

    def local_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return ((n, b) for n, b in self.named_buffers() if self._is_local(n))

    def local_buffers(self) -> Iterator[Tensor]:
        return (b for _, b in self.local_named_buffers())

    def _is_local(self, name: str) -> bool:
        return self._placement is None or self._placement.is_local(name)

    def state_dict(self, gather_to_rank0: bool = False, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The whole model's, with exactly the user's keys. Every rank of the pipeline must call it.

        gather_to_rank0: rank 0 alone gets it, the others an empty dict.
        """
        entries: dict[str, Any] = self.module.state_dict(keep_vars=True, **kwargs)
        if self._placement is not None:
            receive_missing(self._placement, entries, to_rank0=gather_to_rank0)
        if gather_to_rank0 and state.rank != 0:
            return {}
        return _detached(entries)

    def local_state_dict(self) -> dict[str, Any]:
        """What this rank holds, marked with _smp_is_partial."""
        entries = _detached(self.module.state_dict(keep_vars=True))
        local = {k: v for k, v in entries.items() if not (isinstance(v, Tensor) and v.is_meta)}
        local["_smp_is_partial"] = True
        return local

    def load_state_dict(  # type: ignore[override]
        self, state_dict: dict[str, Any], strict: bool = True, same_partition_load: bool = False
    ) -> Any:
        """Takes whole or partial states; after the first step each rank loads what it holds."""
        entries = dict(state_dict)
        partial = entries.pop("_smp_is_partial", False)
        if self._placement is None:
            return self.module.load_state_dict(entries, strict=strict and not partial)
        own = self.module.state_dict(keep_vars=True)
        missing = [k for k, v in own.items() if k not in entries and not (partial and v.is_meta)]
        unexpected = [k for k in entries if k not in own]
        if strict and (missing or unexpected):
            raise RuntimeError(f"load_state_dict: missing {missing}, unexpected {unexpected}")
        with torch.no_grad():
            for name, tensor in own.items():
                if name in entries and isinstance(tensor, Tensor) and not tensor.is_meta:
                    if tensor.shape != entries[name].shape:
                        raise RuntimeError(
                            f"load_state_dict: {name} is {list(entries[name].shape)}, the model's "
                            f"is {list(tensor.shape)}"
                        )
                    tensor.copy_(entries[name])
        return nn.modules.module._IncompatibleKeys(missing, unexpected)

    def register_post_partition_hook(self, hook: Hook) -> RemovableHandle:
        """hook(model, optimizer) runs once the parameters are spread, before the first step."""
        handle = RemovableHandle(self._post_partition_hooks)
        self._post_partition_hooks[handle.id] = hook
        return handle

    def register_post_step_hook(self, hook: Hook) -> RemovableHandle:
        """hook(model, optimizer) runs after the first step."""
        handle = RemovableHandle(self._post_step_hooks)
        self._post_step_hooks[handle.id] = hook
        return handle

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradients of several steps add up with or without it."""
        return nullcontext()

    def join(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if self._placement is not None:
            raise RuntimeError(
                "the model is spread over the ranks: convert it before the first step"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.module.zero_grad(set_to_none)

    def set_placement(self, placement: Placement) -> None:
        """Called by the first step."""
        self._placement = placement
        for hook in list(self._post_partition_hooks.values()):
            hook(self, self._optimizer)

    def run_post_step_hooks(self) -> None:
        for hook in list(self._post_step_hooks.values()):
            hook(self, self._optimizer)

    def set_optimizer(self, optimizer: Any) -> None:
        self._optimizer = weakref.proxy(optimizer)


def _detached(entries: dict[str, Any]) -> dict[str, Any]:
    for name, value in entries.items():
        if isinstance(value, Tensor):
            entries[name] = value.detach()
    return entries
