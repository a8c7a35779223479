"""A pool of long-lived ranks: starting torchrun for every test would cost seconds each.

    ranks.run(2, "test_smp:train", x=1)   ->  [result of rank 0, result of rank 1]

calls the function train(**kwargs) of tests/python/test_smp.py in two processes with a launcher's
environment. A call that fails or runs late ends the pool; the next call starts a new one.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

TIMEOUT = 100.0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _send(connection: Any, value: Any) -> None:
    """By value: torch's own pickling for pipes would share memory between the processes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    connection.send_bytes(buffer.getvalue())


def _receive(connection: Any) -> Any:
    return torch.load(io.BytesIO(connection.recv_bytes()), weights_only=False)


def _serve(rank: int, port: int, connection: Any) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(Path(__file__).parent))
    from autopart import smp
    from autopart.smp import rendezvous

    torch.set_num_threads(1)
    while True:
        try:
            size, call, function, kwargs, environment = _receive(connection)
        except EOFError:
            return
        os.environ.update(WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
        # A name of its own for every call, whatever calls this rank was part of before.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(call)
        rendezvous._generation = 0
        os.environ.update(environment)
        try:
            module, _, name = function.partition(":")
            answer = (True, getattr(importlib.import_module(module), name)(**kwargs))
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            answer = (False, (type(error).__name__, str(error), text))
        finally:
            smp.shutdown()
            for key in environment:
                del os.environ[key]
        _send(connection, answer)


class RankError(AssertionError):
    """What ranks raised: [(type name, message, traceback) or None]."""

    def __init__(self, errors: list[tuple[str, str, str] | None]) -> None:
        self.errors = errors
        super().__init__("\n".join(e[2] for e in errors if e))


class Pool:
    def __init__(self) -> None:
        self._workers: list[tuple[Any, Any]] = []
        self._port = 0
        self._calls = 0

    def run(self, size: int, function: str, env: dict[str, str] | None = None, **kwargs: Any):
        """Results by rank; RankError if any raised."""
        if not all(process.is_alive() for process, _ in self._workers):
            self.close()
        self._start(size)
        self._calls += 1
        for _, connection in self._workers[:size]:
            _send(connection, (size, self._calls, function, kwargs, env or {}))
        results, errors = [], []
        for rank, (process, connection) in enumerate(self._workers[:size]):
            if not connection.poll(TIMEOUT) or not process.is_alive():
                self.close()  # it crashed, or hangs
                raise TimeoutError(f"rank {rank} did not come back from {function}")
            try:
                good, value = _receive(connection)
            except EOFError:
                self.close()
                raise RuntimeError(f"rank {rank} crashed in {function}") from None
            results.append(value if good else None)
            errors.append(None if good else value)
        if any(errors):
            raise RankError(errors)
        return results

    def _start(self, size: int) -> None:
        self._port = self._port or _free_port()
        context = multiprocessing.get_context("spawn")
        while len(self._workers) < size:
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(len(self._workers), self._port, there), daemon=True
            )
            process.start()
            there.close()
            self._workers.append((process, here))

    def close(self) -> None:
        for _, connection in self._workers:
            connection.close()
        for process, _ in self._workers:
            process.join(2)
            if process.is_alive():
                process.kill()
        self._workers, self._port = [], 0
