"""The c10d transport over real Gloo: bytes, failures, and life after them."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import pytest
import torch
from autopart import _core
from torch import Tensor

SOON = 30.0


def join(port: int, name: str) -> tuple[_core.Communicator, object]:
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=60)
    store = TCPStore("127.0.0.1", port, size, rank == 0, timeout=limit)
    group = ProcessGroupGloo(PrefixStore(name, store), rank, size, limit)
    return _core.c10d_communicator(group, store, name), store


def pattern(size: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.manual_seed(seed))


def messages_of_every_size(port: int) -> str:
    comm, _ = join(port, "sizes")
    for seed, size in enumerate([0, 1, 4088, 4089, 65537, 32 << 20]):
        expected = pattern(size, seed)
        if comm.rank == 0:
            comm.send([1], expected, SOON)
        else:
            received = torch.zeros_like(expected)
            comm.receive(0, received, SOON)
            assert torch.equal(received, expected), size
    comm.barrier([0, 1], SOON)
    return comm.transport


def message_borders_are_not_kept(port: int) -> None:
    comm, _ = join(port, "borders")
    data = pattern(10000, 1)
    if comm.rank == 0:
        comm.send([1], data, SOON)
    else:
        head, rest = torch.zeros(16, dtype=torch.uint8), torch.zeros(9984, dtype=torch.uint8)
        comm.receive(0, head, SOON)
        comm.receive(0, rest, SOON)
        assert torch.equal(torch.cat([head, rest]), data)


def collectives(port: int) -> None:
    comm, _ = join(port, "collectives")
    for size in [1, 1000, 300_001]:
        data = pattern(size, 5 if comm.rank == 1 else 6)
        comm.broadcast([0, 1, 2], 1, data, SOON)
        assert torch.equal(data, pattern(size, 5))
        if comm.rank != 1:
            gathered = torch.zeros(2 * size, dtype=torch.uint8)
            comm.all_gather([0, 2], pattern(size, comm.rank), gathered, SOON)
            assert torch.equal(gathered, torch.cat([pattern(size, 0), pattern(size, 2)]))
    comm.barrier([0, 1, 2], SOON)


def deadline_abort_and_a_new_group(port: int) -> tuple[str, float]:
    comm, store = join(port, "first")
    comm.barrier([0, 1, 2], SOON)
    data = torch.zeros(100, dtype=torch.uint8)
    start = time.monotonic()
    with pytest.raises(RuntimeError) as error:
        if comm.rank == 0:
            comm.receive(1, data, 0.3)
        else:
            comm.receive(0, data, SOON)
    took = time.monotonic() - start
    comm.abort(f"stage {comm.rank}, RECV_F1: out of time")
    with pytest.raises(RuntimeError) as later:
        comm.barrier([0, 1, 2], SOON)
    assert str(later.value) == str(error.value)
    first_cause = comm.aborted
    assert first_cause == "stage 0, RECV_F1: out of time"
    del comm

    from torch.distributed import PrefixStore, ProcessGroupGloo

    rank = int(os.environ["RANK"])
    group = ProcessGroupGloo(PrefixStore("second", store), rank, 3, timedelta(seconds=60))
    again = _core.c10d_communicator(group, store, "second")
    assert again.aborted is None
    again.barrier([0, 1, 2], SOON)
    return str(error.value), took


def a_rank_that_leaves(port: int) -> str:
    comm, store = join(port, "leaves")
    comm.barrier([0, 1], SOON)
    if comm.rank == 1:
        del comm  # the last reference to the backend: its connections close
        store.wait(["done"], timedelta(seconds=60))
        return ""
    start = time.monotonic()
    with pytest.raises(RuntimeError) as error:
        comm.receive(1, torch.zeros(8, dtype=torch.uint8), SOON)
    assert time.monotonic() - start < 5
    store.set("done", "")
    return str(error.value)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(ranks, size: int, function: str):
    return ranks.run(size, f"test_c10d_transport:{function}", port=free_port())


def test_messages_of_every_size_arrive_whole(ranks):
    assert run(ranks, 2, "messages_of_every_size") == ["gloo", "gloo"]


def test_message_borders_are_not_kept(ranks):
    run(ranks, 2, "message_borders_are_not_kept")


def test_collectives_work_on_all_and_on_some_ranks(ranks):
    run(ranks, 3, "collectives")


def test_a_deadline_reaches_all_ranks_as_the_first_cause_and_a_new_group_works(ranks):
    (own, took), *others = run(ranks, 3, "deadline_abort_and_a_new_group")
    assert "deadline passed" in own and "100 bytes from rank 1" in own and took < 3
    for error, took in others:
        assert "rank 0 failed: stage 0, RECV_F1: out of time" in error and took < 3


def test_a_rank_that_leaves_is_missed(ranks):
    assert "rank 1 is gone" in run(ranks, 2, "a_rank_that_leaves")[0]
