"""Gradient clipping by the norm of the whole model.

torch.nn.utils.clip_grad_norm_ sees only what a rank holds and would clip each stage by its own
norm. While a DistributedModel lives, the function behind it (its name may have been imported long
before) is ours: for the model's parameters the norm counts each one once over stages and replicas
and is computed in the order of one device. clip_grad_value_ works element by element and needs no
change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .collectives import gather_rows
from .state import state

_original: Any = None


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Like torch's, over the model's parameters on all ranks, which must all call it."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    model = state.model
    placement = model.placement if model is not None else None
    names: dict[int, str] = {}
    if model is not None and placement is not None:
        named = model.get_module().named_parameters(remove_duplicate=False)
        names = {id(p): placement.name_of[name] for name, p in named}
    ours = [p for p in listed if id(p) in names]
    if not ours or placement is None:
        original = _original or torch.nn.utils.clip_grad_norm_
        total: Tensor = original(listed, max_norm, norm_type, error_if_nonfinite, foreach)
        return total
    if len(ours) != len(listed):
        raise ValueError(
            "clip_grad_norm_ was given parameters of the DistributedModel together with others: "
            "the norm of the model's is over all ranks; clip the two apart"
        )
    norm_type = float(norm_type)
    norms = [
        torch.linalg.vector_norm(p.grad, norm_type)
        if p.grad is not None and placement.owner(names[id(p)]) == state.pp_rank
        else None
        for p in ours
    ]
    total = _total(norms, [p.dtype for p in ours], norm_type)
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be "
            "clipped"
        )
    coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    with torch.no_grad():
        for p in {id(p): p for p in ours}.values():
            if p.grad is not None:
                p.grad.mul_(coefficient.to(p.grad.dtype))
    return total


def _total(norms: list[Tensor | None], dtypes: list[torch.dtype], norm_type: float) -> Tensor:
    """Norm of the norms, each from its owner, in the order given."""
    mine = torch.full((len(norms),), -1.0, dtype=torch.float64)  # -1: not here
    for i, norm in enumerate(norms):
        if norm is not None:
            mine[i] = norm.double()
    layout = state.layout
    assert layout is not None
    rows = gather_rows(sorted(layout.pp_group(state.dp_rank)), mine)
    present = (rows != -1.0).any(0)
    values = torch.where(rows == -1.0, 0.0, rows).sum(0)
    found = [values[i].to(dtypes[i]) for i in range(len(norms)) if present[i]]
    if not found:
        return torch.tensor(0.0)
    total: Tensor = torch.linalg.vector_norm(torch.stack(found), norm_type)
    return total


def install_clipping() -> None:
    """Puts ours behind torch.nn.utils.clip_grad_norm_, once a process."""
    global _original
    if _original is not None:
        return
    wrapper: Any = torch.nn.utils.clip_grad_norm_
    for cell in wrapper.__closure__ or ():
        inner = cell.cell_contents
        if callable(inner) and getattr(inner, "__name__", "") == "clip_grad_norm_":
            _original = inner
            cell.cell_contents = clip_grad_norm_
            return
    _original = wrapper  # a torch whose function is not wrapped: the name is all there is
    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
