"""What a model computes, without its tensors: from autopart.capture, for autopart.plan."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from . import _core


@dataclass(frozen=True)
class CapturedModel:
    """The graph of a model, without its tensors. Equal to what the real model gives."""

    graph: _core.OpGraph = field(repr=False)
    name: str  # of the module's class
    num_operators: int
    num_parameters: int  # elements of all parameters, shared ones once
    parameter_bytes: int

    def to_json(self) -> str:
        return self.graph.to_json()

    def save(self, path: str | os.PathLike[str]) -> int:
        """Writes the graph as JSON, which `autopart plan` and `profile` read; returns its bytes."""
        return Path(path).write_bytes(self.to_json().encode())
