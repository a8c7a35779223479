"""What a capture depends on beside its tensors' values: when any of it changes, capture anew.

A trace freezes every Python value that the code reads. The key therefore describes the arguments
(shapes and dtypes of tensors, values of the rest), grad and autocast state, training flags,
attributes and hooks of the modules, and the values that the code reads from closures and globals,
through the user's own functions too. Of other objects count the plain attributes that the code
names; what cannot be described (an open file, an optimizer) counts by type.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import os
import sysconfig
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_SIMPLE = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_PLAIN = (bool, *_SIMPLE)
_MAX_ITEMS = 1000  # of a container: a longer one counts by type and length
# What every module has; its training flag counts, and its hooks do.
_MODULE_STATE = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# Code from here is no user's: its globals do not change.
_LIBRARIES = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    os.path.dirname(os.path.dirname(torch.__file__)),
)


@dataclass
class Key:
    """`shared` must agree between replicas; `local` holds identities, which differ by process."""

    shared: list[Any] = field(default_factory=list)
    local: list[Any] = field(default_factory=list)

    def digests(self) -> tuple[bytes, bytes]:
        """16 bytes of the shared part, 16 of everything."""
        shared = _digest(self.shared)
        return shared, _digest([shared, self.local])


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
        self._open: set[int] = set()  # containers that are being read
        self._trained: set[int] = set()  # parameters and buffers: inputs of the graph

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
        self._key.shared.append(("function", function.__module__, function.__qualname__))
        code = function.__code__
        if code.co_filename.startswith(_LIBRARIES):
            return None
        self._key.shared.append((code.co_code, [c for c in code.co_consts if type(c) in _PLAIN]))
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
        if isinstance(value, enum.Enum) or type(value) in _PLAIN:
            self._key.shared.append((path, repr(value)))
        elif isinstance(value, Tensor):
            self._key.shared.append((path, str(value.dtype), list(value.shape)))
            if id(value) not in self._trained:
                self._key.local.append((path, id(value), value._version))
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            self._container(path, value, names)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self.function(value)
        elif isinstance(value, nn.Module):
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self.module(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            pass  # its numbers belong to the update, not to the step
        else:
            name = getattr(value, "__qualname__", "")  # of classes and of functions in C
            self._key.shared.append((path, type(value).__qualname__, name))
            self._attributes(path, value, names)

    def _container(self, path: str, value: Any, names: Iterable[str]) -> None:
        self._key.shared.append((path, type(value).__qualname__, len(value)))
        if len(value) > _MAX_ITEMS or id(value) in self._open:
            return
        self._open.add(id(value))
        if isinstance(value, dict):
            for key, item in value.items():
                self.value(f"{path}[{_describe(key)}]", item, names)
        elif isinstance(value, (set, frozenset)):
            self._key.shared.append(sorted(map(_describe, value)))
        elif all(type(item) in _PLAIN for item in value):
            self._key.shared.append(list(value))
        else:
            for i, item in enumerate(value):
                self.value(f"{path}[{i}]", item, names)
        self._open.discard(id(value))

    def _attributes(self, path: str, value: Any, names: Iterable[str]) -> None:
        """Plain attributes, of those that the code names."""
        if getattr(value, "__name__", "").partition(".")[0] == "torch":
            return
        attributes = getattr(value, "__dict__", {})
        for name in names:
            if name in attributes and isinstance(attributes[name], (*_SIMPLE, Tensor)):
                self.value(f"{path}.{name}", attributes[name], ())

    def module(self, path: str, module: nn.Module) -> None:
        """Training flags, attributes, hooks, which parameters train, and what forward reads."""
        parameters = list(module.parameters())
        self._trained.update(map(id, parameters), map(id, module.buffers()))
        kinds = {}
        for child in module.modules():
            self._seen.add(id(child))
            kind = type(child)
            kinds[kind] = None
            attributes = vars(child)
            plain = []
            for name, value in attributes.items():
                if name in _MODULE_STATE:
                    continue
                if type(value) in _PLAIN:
                    plain.append((name, value))
                else:
                    self.value(f"{path}.{name}", value, _methods(kind)[1])
            self._key.shared.append((path, plain))
            for name in _HOOKS:
                if attributes[name]:
                    self.value(f"{path}.{name}", list(attributes[name].values()), ())
        self._key.shared.append([p.requires_grad for p in parameters])
        for kind in kinds:
            for method in _methods(kind)[0]:
                self.function(method)


def _describe(value: Any) -> str:
    """The same in every process, whatever repr says."""
    return repr(value) if type(value) in _PLAIN else type(value).__qualname__


@functools.cache
def _methods(kind: type) -> tuple[list[types.FunctionType], list[str]]:
    """A module class's forward and the methods that it calls; the names that they read."""
    methods: list[types.FunctionType] = []
    read: set[str] = set()
    todo = ["forward"]
    while todo:
        method = getattr(kind, todo.pop(), None)
        method = method.fget if isinstance(method, property) else method
        if not isinstance(method, types.FunctionType) or method in methods:
            continue
        if method is getattr(nn.Module, method.__name__, None):
            continue
        methods.append(method)
        names = _names(inspect.unwrap(method).__code__)
        todo += [name for name in names if name not in read]
        read.update(names)
    return methods, sorted(read)  # the order of a set differs between processes


def _names(code: types.CodeType) -> list[str]:
    """Global and attribute names that the code reads, inner functions and lambdas included."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return names
