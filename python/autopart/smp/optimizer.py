"""smp.DistributedOptimizer: the user's optimizer, whose state is spread like the parameters."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .collectives import allgather
from .state import CommGroup, state

_live: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def live_optimizers() -> list[torch.optim.Optimizer]:
    return list(_live)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    static_loss_scale: float = 1.0,
    dynamic_loss_scale: bool = False,
    **dynamic_loss_args: Any,
) -> torch.optim.Optimizer:
    """The same object, of a class derived from its own: schedulers and scalers go on working.

    step() updates what this rank holds (torch's optimizers skip parameters without gradient).
    state_dict() gathers the state of all stages; every rank of the pipeline must call it.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not a torch optimizer")
    if static_loss_scale != 1.0 or dynamic_loss_scale:
        raise ValueError("loss scaling is for fp16, which is not supported yet")
    base = type(optimizer)
    if not issubclass(base, _Distributed):
        optimizer.__class__ = type("Distributed" + base.__name__, (_Distributed, base), {})
    _live.add(optimizer)
    if state.model is not None:
        state.model.set_optimizer(optimizer)
    return optimizer


class _Distributed(torch.optim.Optimizer):
    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """State of what this rank holds, in torch's form."""
        return super().state_dict()

    def state_dict(self) -> dict[str, Any]:
        """State of the whole model, in torch's form: plain torch loads it."""
        local = super().state_dict()
        if state.model is None or not state.model.partitioned:
            return local
        merged: dict[Any, Any] = {}
        for part in allgather(_real(local["state"]), CommGroup.MP_GROUP):
            for index, entry in part.items():
                merged.setdefault(index, entry)
        merged.update(_real(local["state"]))
        return {**local, "state": dict(sorted(merged.items()))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes whole or local states; keeps what belongs to parameters that this rank holds."""
        super().load_state_dict(state_dict)
        for parameter in [p for p in self.state if isinstance(p, torch.Tensor) and p.is_meta]:
            del self.state[parameter]


def _real(entries: dict[Any, Any]) -> dict[Any, Any]:
    """Without the state of parameters that are elsewhere."""
    return {
        index: entry
        for index, entry in entries.items()
        if not any(isinstance(v, torch.Tensor) and v.is_meta for v in entry.values())
    }
