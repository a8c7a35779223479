"""smp.init() and its end."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

from .program import forget_programs
from .rendezvous import connect
from .state import Layout, State, World, read_config, state


def init(config: dict[str, Any] | None = None) -> None:
    """Brings the ranks of the launcher's job together. A second call is ignored with a warning.

    Needs no torch.distributed.init_process_group, and does not touch the one of the user.
    """
    if state.initialized:
        warnings.warn("smp.init: initialized already, this call is ignored", stacklevel=2)
        return
    cfg = read_config(config)
    world = World.from_environment()
    layout = Layout.of(cfg, world.size)
    state.communicator = connect(world, cfg)
    state.cfg, state.world, state.layout = cfg, world, layout


def shutdown() -> None:
    """Ends what init() began; another init() may follow. Ranks may come to it at any time."""
    forget_programs()
    fresh = State()
    for name in vars(fresh):
        setattr(state, name, getattr(fresh, name))


def install() -> None:
    """Makes `import smdistributed.modelparallel.torch as smp` mean this package."""
    import autopart.smp as smp

    names = ("smdistributed", "smdistributed.modelparallel", "smdistributed.modelparallel.torch")
    parent: types.ModuleType | None = None
    for name in names[:2]:
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__path__ = []
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], module)
        parent = module
    assert parent is not None
    parent.__version__ = "1.15.0"  # type: ignore[attr-defined]
    parent.torch = smp  # type: ignore[attr-defined]
    sys.modules[names[2]] = smp
