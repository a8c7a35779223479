"""Exchange of Python objects and tensors between ranks, over autopart's own communicator."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .state import CommGroup, RankType, state


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Returns when every rank of the group has come here."""
    state.comm.barrier(sorted(state.group(group)), state.cfg.deadline)


def dp_barrier() -> None:
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    barrier(CommGroup.MP_GROUP)


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """Every rank's object, in the order of the group's ranks."""
    ranks = state.group(group)
    blobs = gather_blobs(sorted(ranks), _to_bytes(obj))
    return [_from_bytes(blobs[rank]) for rank in ranks]


def broadcast(obj: Any, group: CommGroup = CommGroup.WORLD) -> None:
    """Sends to all other ranks of the group, which take it with recv_from."""
    _send([rank for rank in state.group(group) if rank != state.rank], obj)


def send(obj: Any, dest_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    _send([state.group(rank_type)[dest_rank]], obj)


def recv_from(src_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    source = state.group(rank_type)[src_rank]
    size = torch.empty(1, dtype=torch.int64)
    state.comm.receive(source, size, state.cfg.deadline)
    data = torch.empty(int(size), dtype=torch.uint8)
    state.comm.receive(source, data, state.cfg.deadline)
    return _from_bytes(data)


def _send(ranks: Sequence[int], obj: Any) -> None:
    data = _to_bytes(obj)
    state.comm.send(ranks, torch.tensor([data.numel()]), state.cfg.deadline)
    state.comm.send(ranks, data, state.cfg.deadline)


def share(obj: Any, root: int, group: Sequence[int]) -> Any:
    """The object of rank `root` on every rank of the group; `obj` counts on the root alone."""
    if len(group) == 1:
        return obj
    data = _to_bytes(obj) if state.rank == root else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    state.comm.broadcast(group, root, size, state.cfg.deadline)
    if state.rank != root:
        data = torch.empty(int(size), dtype=torch.uint8)
    state.comm.broadcast(group, root, data, state.cfg.deadline)
    return obj if state.rank == root else _from_bytes(data)


def gather_blobs(group: Sequence[int], mine: Tensor) -> dict[int, Tensor]:
    """Every rank's bytes, by rank. Empty ones cost nothing. `group` is ascending."""
    if len(group) == 1:
        return {group[0]: mine}
    sizes = torch.zeros(len(group), dtype=torch.int64)
    state.comm.all_gather(group, torch.tensor([mine.numel()]), sizes, state.cfg.deadline)
    blobs = {}
    for rank, size in zip(group, sizes.tolist(), strict=True):
        blob = mine if rank == state.rank else torch.empty(size, dtype=torch.uint8)
        if size:
            state.comm.broadcast(group, rank, blob, state.cfg.deadline)
        blobs[rank] = blob
    return blobs


def gather_rows(group: Sequence[int], mine: Tensor) -> Tensor:
    """Every rank's row of numbers, stacked in ascending order of ranks."""
    rows = mine.new_empty((len(group), *mine.shape))
    if len(group) == 1:
        return mine[None]
    state.comm.all_gather(group, mine.contiguous(), rows, state.cfg.deadline)
    return rows


def broadcast_tensor(tensor: Tensor, root: int, group: Sequence[int]) -> None:
    """Overwrites a CPU tensor with the root's, whatever its strides."""
    if len(group) == 1 or tensor.numel() == 0:
        return
    data = tensor.detach()
    dense = data.contiguous()
    state.comm.broadcast(group, root, dense, state.cfg.deadline)
    if dense.data_ptr() != data.data_ptr() and state.rank != root:
        data.copy_(dense)


def _to_bytes(obj: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)


def _from_bytes(data: Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
