"""Copies of modules and tensors on the meta device: shapes without memory.

A twin keeps what capture can see of the original: classes, training flags, strides, requires_grad,
one object where the original has one object, one storage where the original has one storage.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def meta_like(tensor: Tensor) -> Tensor:
    """A meta tensor of the same shape, dtype, strides and class (Parameter or Tensor)."""
    twin = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=False
    )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad)


def meta_twin(module: nn.Module) -> nn.Module:
    """A deep copy of `module` whose parameters and buffers are meta tensors."""
    memo: dict[int, Any] = {}
    for group in _by_storage([*module.parameters(), *module.buffers()]):
        if len(group) == 1:
            memo[id(group[0])] = meta_like(group[0])
            continue
        size = max(_end(tensor) for tensor in group)
        base = torch.empty(size, dtype=group[0].dtype, device="meta")
        for tensor in group:
            twin = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            if isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = twin
    return copy.deepcopy(module, memo)


def unalias(module: nn.Module) -> nn.Module:
    """Gives every name within one module an object of its own, on the same storage.

    torch.jit.trace refuses a module that holds one tensor under two names.
    """
    for child in module.modules():
        seen: set[int] = set()
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is None or id(tensor) not in seen:
                    seen.add(id(tensor))
                    continue
                other = tensor.detach()
                if isinstance(tensor, nn.Parameter):
                    other = nn.Parameter(other, requires_grad=tensor.requires_grad)
                table[name] = other  # type: ignore[assignment]
    return module


def _by_storage(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Distinct tensors, those of one storage and dtype together."""
    groups: dict[Any, list[Tensor]] = {}
    seen: set[int] = set()
    for tensor in tensors:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        try:
            key: Any = (tensor.untyped_storage()._cdata, tensor.dtype)
        except NotImplementedError:  # a subclass without storage
            key = id(tensor)
        groups.setdefault(key, []).append(tensor)
    return list(groups.values())


def _end(tensor: Tensor) -> int:
    """Elements of the storage up to the last one that `tensor` reaches."""
    if tensor.numel() == 0:
        return int(tensor.storage_offset())
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset() + sum((n - 1) * s for n, s in strides) + 1)
