"""Ranks, sizes and groups, by SMP's names."""

from __future__ import annotations

from typing import Any

from .state import CommGroup, state


def is_initialized() -> bool:
    return state.initialized


def is_tracing() -> bool:
    return state.tracing


def rank() -> int:
    return state.rank


def size() -> int:
    return state._world().size


def local_rank() -> int:
    return state._world().local_rank


def local_size() -> int:
    return state._world().local_size


def pp_rank() -> int:
    return state.pp_rank


def pp_size() -> int:
    return state._layout().pp_size


def dp_rank() -> int:
    return state.dp_rank


def dp_size() -> int:
    return state._layout().dp_size


# Without tensor parallelism a model's ranks are its pipeline's, and its replicas the data-parallel
# group.
mp_rank, mp_size = pp_rank, pp_size
rdp_rank, rdp_size = dp_rank, dp_size


def tp_rank() -> int:
    state._world()
    return 0


def tp_size() -> int:
    state._world()
    return 1


def get_world_group() -> list[int]:
    return state.group(CommGroup.WORLD)


def get_pp_group() -> list[int]:
    return state.group(CommGroup.PP_GROUP)


def get_mp_group() -> list[int]:
    return state.group(CommGroup.MP_GROUP)


def get_dp_group() -> list[int]:
    return state.group(CommGroup.DP_GROUP)


def get_rdp_group() -> list[int]:
    return state.group(CommGroup.RDP_GROUP)


def get_tp_group() -> list[int]:
    return state.group(CommGroup.TP_GROUP)


_process_groups: dict[tuple[int, ...], Any] = {}


def _process_group(kind: CommGroup) -> Any:
    """A torch.distributed group. All ranks must ask, as torch's new_group wants."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    layout = state._layout()
    if kind is CommGroup.WORLD:
        return dist.group.WORLD
    if kind in (CommGroup.MP_GROUP, CommGroup.PP_GROUP):
        groups = [layout.pp_group(d) for d in range(layout.dp_size)]
    elif kind in (CommGroup.DP_GROUP, CommGroup.RDP_GROUP):
        groups = [layout.dp_group(p) for p in range(layout.pp_size)]
    else:
        groups = [[r] for r in range(layout.world_size)]
    for group in groups:
        if tuple(group) not in _process_groups:
            _process_groups[tuple(group)] = dist.new_group(group)
    return _process_groups[tuple(state.group(kind))]


def get_world_process_group() -> Any:
    return _process_group(CommGroup.WORLD)


def get_mp_process_group() -> Any:
    return _process_group(CommGroup.MP_GROUP)


def get_pp_process_group() -> Any:
    return _process_group(CommGroup.PP_GROUP)


def get_dp_process_group() -> Any:
    return _process_group(CommGroup.DP_GROUP)


def get_rdp_process_group() -> Any:
    return _process_group(CommGroup.RDP_GROUP)


def get_tp_process_group() -> Any:
    return _process_group(CommGroup.TP_GROUP)
