"""Which integer inputs of a traced graph are indices, and below what bound they must stay.

Needed to make example values for profiling: random token ids must be valid rows of the embedding.
An input is followed through operators that only move its elements; where it arrives as the index
of an embedding, a gather or a class label, the size that it indexes is a bound. The least counts.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

# Operators whose first operand's elements are those of the result.
_MOVES = re.compile(
    "aten::(view|reshape|contiguous|slice|select|to|expand|expand_as|unsqueeze|squeeze|transpose"
    "|permute|clone|flatten|unflatten|constant_pad_nd|pad|detach|alias|narrow|t|repeat|view_as"
    "|type_as|masked_fill_?|chunk|split|unbind|roll|flip|index|index_select|masked_select)"
    "|prim::(List|Tuple)Unpack"
)
# Views: writing through them writes the base.
_VIEWS = re.compile("aten::(view|slice|select|expand|unsqueeze|squeeze|transpose|t)")


def index_bounds(script: torch.jit.ScriptModule) -> list[int | None]:
    """The bound of each input of a traced module; None without one."""
    graph = script.graph.copy()
    torch._C._jit_pass_inline(graph)
    this, *inputs = graph.inputs()
    attributes: dict[str, Any] = {this.debugName(): script._c}  # of the module, by value
    sources: dict[str, set[int]] = {v.debugName(): {i} for i, v in enumerate(inputs)}
    base_of: dict[str, str] = {}
    bounds: list[int | None] = [None] * len(inputs)

    def bound(index_value: Any, limit: int | None) -> None:
        for i in sources.get(index_value.debugName(), ()):
            if limit is not None:
                bounds[i] = min(bounds[i] or limit, limit)

    def size(value: Any, dim: int) -> int | None:
        attribute = attributes.get(value.debugName())
        sizes: list[int] | None = None
        if isinstance(attribute, Tensor):
            sizes = list(attribute.shape)
        elif value.type().kind() == "TensorType":
            sizes = value.type().sizes()
        if not sizes or not -len(sizes) <= dim <= len(sizes):
            return None
        return int(sizes[dim] if dim < len(sizes) else sizes[-1])

    for node in graph.nodes():
        kind, operands = node.kind(), list(node.inputs())
        if kind == "prim::GetAttr":
            owner = attributes.get(operands[0].debugName())
            if owner is not None:
                attributes[node.output().debugName()] = owner.getattr(node.s("name"))
            continue
        if kind in ("prim::ListConstruct", "prim::TupleConstruct", "aten::cat", "aten::stack"):
            moved = set().union(*(sources.get(v.debugName(), set()) for v in operands))
        elif _MOVES.fullmatch(kind):
            moved = sources.get(operands[0].debugName(), set())
        else:
            moved = set()
        if _VIEWS.fullmatch(kind):
            name = operands[0].debugName()
            base_of[node.output().debugName()] = base_of.get(name, name)
        if kind == "aten::copy_":
            target = operands[0].debugName()
            written = sources.get(operands[1].debugName(), set())
            for name in (target, base_of.get(target, target)):
                sources[name] = sources.get(name, set()) | written
            moved = written
        if moved:
            for output in node.outputs():
                sources[output.debugName()] = set(moved)

        if kind in ("aten::embedding", "aten::embedding_bag"):
            bound(operands[1], size(operands[0], 0))
        elif kind in ("aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd"):
            bound(operands[1], size(operands[0], 1))
        elif kind in ("aten::gather", "aten::index_select"):
            dim = operands[1].toIValue()
            if isinstance(dim, int):
                bound(operands[2], size(operands[0], dim))
        elif kind == "aten::one_hot":
            classes = operands[1].toIValue()
            bound(operands[0], classes if isinstance(classes, int) and classes > 0 else None)
    return bounds
