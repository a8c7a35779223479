"""Nested results and arguments as a flat list of leaves and a picklable description.

Like torch.utils._pytree, but without registration: every dict subclass keeps its class (Hugging
Face's ModelOutput included), so do named tuples and dataclasses. What is no container is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

_LEAF, _LIST, _TUPLE, _NAMED_TUPLE, _DICT, _DATACLASS = range(6)


@dataclasses.dataclass(frozen=True)
class Tree:
    """Where each leaf stands. `keys` are dict keys, field names or positions."""

    kind: int
    type: Any = None
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()

    @property
    def num_leaves(self) -> int:
        return 1 if self.kind == _LEAF else sum(child.num_leaves for child in self.children)


@dataclasses.dataclass(frozen=True)
class Leaf:
    path: str
    value: Any


def flatten(value: Any) -> tuple[list[Leaf], Tree]:
    """The leaves in order, each with its path ("['loss']", "[1].hidden"), and the tree."""
    leaves: list[Leaf] = []
    return leaves, _flatten(value, "", leaves)


def _flatten(value: Any, path: str, leaves: list[Leaf]) -> Tree:
    def node(kind: int, type_: Any, keys: list[Any], items: list[Any], named: bool = False) -> Tree:
        children = tuple(
            _flatten(item, f"{path}.{key}" if named else f"{path}[{key!r}]", leaves)
            for key, item in zip(keys, items, strict=True)
        )
        return Tree(kind, type_, tuple(keys), children)

    if isinstance(value, dict):
        return node(_DICT, type(value), list(value.keys()), list(value.values()))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return node(_NAMED_TUPLE, type(value), list(value._fields), list(value), named=True)
    if isinstance(value, tuple):
        return node(_TUPLE, type(value), list(range(len(value))), list(value))
    if isinstance(value, list):
        return node(_LIST, type(value), list(range(len(value))), value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return node(_DATACLASS, type(value), names, [getattr(value, n) for n in names], named=True)
    leaves.append(Leaf(path, value))
    return Tree(_LEAF)


def unflatten(tree: Tree, leaves: list[Any]) -> Any:
    """The inverse of flatten."""
    if len(leaves) != tree.num_leaves:
        raise ValueError(f"a tree of {tree.num_leaves} leaves was given {len(leaves)}")
    return _unflatten(tree, iter(leaves))


def _unflatten(tree: Tree, leaves: Any) -> Any:
    if tree.kind == _LEAF:
        return next(leaves)
    items = [_unflatten(child, leaves) for child in tree.children]
    if tree.kind == _NAMED_TUPLE:
        return tree.type(*items)
    if tree.kind == _DATACLASS:
        return tree.type(**dict(zip(tree.keys, items, strict=True)))
    if tree.kind == _DICT:
        entries = dict(zip(tree.keys, items, strict=True))
        make: Any = tree.type
        if dataclasses.is_dataclass(make):  # ModelOutput
            return make(**entries)  # type: ignore[operator]
        return entries if make is dict else make(entries)
    return tree.type(items)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with every leaf replaced by function(leaf)."""
    leaves, tree = flatten(value)
    return unflatten(tree, [function(leaf.value) for leaf in leaves])
