"""What a capture depends on beside its tensors' values: when any of it changes, capture anew.

A trace freezes every Python value that the code reads. The key therefore describes the arguments
(shapes and dtypes of tensors, values of the rest), grad and autocast state, training flags and
plain attributes of the modules, and the values that the code reads from closures and globals,
through the user's own functions too. Objects that cannot be described (an open file, an optimizer)
count by type.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sysconfig
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_SIMPLE = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MAX_ITEMS = 1000  # of a container: a longer one counts by type and length
# Code from here is no user's: its globals do not change.
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@dataclass
class Key:
    """`shared` must agree between replicas; `local` holds identities, which differ by process."""

    shared: list[Any] = field(default_factory=list)
    local: list[Any] = field(default_factory=list)

    def digests(self) -> tuple[bytes, bytes]:
        """16 bytes of the shared part, 16 of everything."""
        return _digest(self.shared), _digest([self.shared, self.local])


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def capture_key(
    function: Any, arguments: Iterable[Any], module: nn.Module, batch_axes: Iterable[int] = ()
) -> Key:
    """The key of function(*arguments) with this module in its present state."""
    key = Key()
    key.shared.append(
        (
            torch.is_grad_enabled(),
            [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
            str(torch.get_autocast_dtype("cpu")),
            str(torch.get_default_dtype()),
            list(batch_axes),
        )
    )
    reader = _Reader(key, module)
    for argument in arguments:
        if isinstance(argument, Tensor):
            key.shared.append((str(argument.dtype), list(argument.shape), argument.requires_grad))
        else:
            reader.value("argument", argument, ())
    reader.module("model", module)
    reader.function(function)
    return key


class _Reader:
    def __init__(self, key: Key, model: nn.Module) -> None:
        self._key = key
        self._seen: set[int] = {id(model)}  # also keeps recursion finite

    def function(self, function: Any) -> None:
        if isinstance(function, functools.partial):
            self.value("partial", [function.args, function.keywords], ())
            return self.function(function.func)
        if isinstance(function, types.MethodType):
            names = _names(function.__func__.__code__)
            self.value("self", function.__self__, names)
            return self.function(function.__func__)
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType) or id(function) in self._seen:
            return None
        self._seen.add(id(function))
        code = function.__code__
        if code.co_filename.startswith(_LIBRARIES):
            return None
        names = _names(code)
        self.value("defaults", [function.__defaults__, function.__kwdefaults__], names)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.value(name, cell.cell_contents, names)
            except ValueError:  # not filled yet
                continue
        for name in names:
            if name in function.__globals__:
                self.value(name, function.__globals__[name], names)
        return None

    def value(self, path: str, value: Any, names: Iterable[str]) -> None:
        """names: attributes that the code may read from the value."""
        if isinstance(value, enum.Enum) or type(value) in _SIMPLE or isinstance(value, bool):
            self._key.shared.append((path, repr(value)))
        elif isinstance(value, Tensor):
            self._key.shared.append((path, str(value.dtype), list(value.shape)))
            self._key.local.append((path, id(value), value._version))
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            self._container(path, value, names)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self.function(value)
        elif isinstance(value, nn.Module):
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self.module(path, value)
                if type(value).__call__ is nn.Module.__call__:
                    self.function(type(value).forward)
        elif isinstance(value, torch.optim.Optimizer):
            pass  # its numbers belong to the update, not to the step
        else:
            self._key.shared.append((path, type(value).__qualname__))
            self._attributes(path, value, names)

    def _container(self, path: str, value: Any, names: Iterable[str]) -> None:
        if len(value) > _MAX_ITEMS or id(value) in self._seen:
            self._key.shared.append((path, type(value).__qualname__, len(value)))
            return
        self._key.shared.append((path, type(value).__qualname__, len(value)))
        if isinstance(value, dict):
            for item in value:
                self.value(f"{path}[{item!r}]", value[item], names)
        elif isinstance(value, (set, frozenset)):
            self._key.shared.append(sorted(map(repr, value)))
        else:
            for i, item in enumerate(value):
                self.value(f"{path}[{i}]", item, names)

    def _attributes(self, path: str, value: Any, names: Iterable[str]) -> None:
        """Plain attributes, of those that the code names."""
        if getattr(value, "__name__", "").partition(".")[0] == "torch":
            return
        attributes = getattr(value, "__dict__", {})
        for name in names:
            if name in attributes and isinstance(attributes[name], (*_SIMPLE, Tensor)):
                self.value(f"{path}.{name}", attributes[name], ())

    def module(self, path: str, module: nn.Module) -> None:
        """Training flags, plain attributes, and which parameters train."""
        for child in module.modules():
            plain = [(k, v) for k, v in vars(child).items() if type(v) in (bool, int, float, str)]
            self._key.shared.append((path, plain))
        self._key.shared.append([p.requires_grad for p in module.parameters()])


def _names(code: types.CodeType) -> list[str]:
    """Global and attribute names that the code reads, inner functions and lambdas included."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return names
