"""torch.no_grad() inside captured code.

A trace records operators but not the grad mode that they ran under. It does record which results
required a gradient: an operator whose result does not, though an operand does, ran under no_grad
(or has no derivative). Detaching its operands there makes any executor do what the code did.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Their results never require a gradient; detaching for them would only add operators.
_NO_DERIVATIVE = ("aten::detach", "aten::size", "aten::zeros_like", "aten::ones_like")


def cut_gradients(script: torch.jit.ScriptModule) -> int:
    """Inserts aten::detach where the code ran under no_grad; how many it inserted."""
    return _cut(script._c, "forward", set())


def _cut(module: Any, method: str, done: set[tuple[Any, str]]) -> int:
    graph = module._get_method(method).graph
    key = (module._type().qualified_name(), method)
    if key in done:
        return 0
    done.add(key)
    this = next(iter(graph.inputs()))
    objects: dict[str, Any] = {this.debugName(): module}
    requires: dict[str, bool] = {}
    inserted = 0
    for node in list(graph.nodes()):
        kind = node.kind()
        if kind == "prim::GetAttr":
            value = objects[node.input().debugName()].getattr(node.s("name"))
            objects[node.output().debugName()] = value
            requires[node.output().debugName()] = isinstance(value, Tensor) and value.requires_grad
        elif kind == "prim::CallMethod":
            callee = objects[next(iter(node.inputs())).debugName()]
            inserted += _cut(callee, node.s("name"), done)
            requires[node.output().debugName()] = _returns_gradient(callee, node.s("name"))
        elif kind.startswith("aten::") and kind not in _NO_DERIVATIVE and _has_no_gradient(node):
            for i, operand in enumerate(list(node.inputs())):
                known = requires.get(operand.debugName())
                if _requires(operand) if known is None else known:
                    detach = graph.create("aten::detach", [operand])
                    detach.insertBefore(node)
                    detach.output().setType(operand.type())
                    node.replaceInput(i, detach.output())
                    inserted += 1
    return inserted


def _is_tensor(value: Any) -> bool:
    return bool(value.type().kind() == "TensorType")


def _requires(value: Any) -> bool:
    return _is_tensor(value) and bool(value.type().requires_grad())


def _has_no_gradient(node: Any) -> bool:
    """A floating point result, or a write in place, without gradient."""
    outputs = [o for o in node.outputs() if _is_tensor(o)]
    if not outputs or any(_requires(o) for o in outputs):
        return False
    floats = ("Float", "Double", "Half", "BFloat16")
    return node.kind().endswith("_") or any(o.type().scalarType() in floats for o in outputs)


def _returns_gradient(module: Any, method: str) -> bool:
    graph = module._get_method(method).graph
    return any(_requires(value) for value in graph.outputs())
