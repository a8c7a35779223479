"""How ranks come together: over the launcher's store, then by shared memory or Gloo."""

from __future__ import annotations

import functools
import os
import socket
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

from .. import _core
from .state import Config, World

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_TRANSPORTS = ("shared memory", "gloo")
_generation = 0  # of groups that this process has been in


def connect(world: World, config: Config) -> _core.Communicator:
    """A communicator over all ranks. Every rank calls it as often as the others."""
    global _generation
    wanted = config.transport or os.environ.get("AUTOPART_TRANSPORT") or None
    if wanted not in (None, *_TRANSPORTS):
        raise ValueError(f"transport {wanted!r} is none of: {', '.join(_TRANSPORTS)}")
    if world.size == 1:
        return _core.single_rank_communicator()
    store = _store(world)
    store.set_timeout(timedelta(seconds=config.deadline))
    _generation += 1
    prefix = f"autopart/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_generation}"
    hosts = _everyones(store, f"{prefix}/host", world, f"{_host()} {wanted or 'any'}")
    if len({host.partition(" ")[2] for host in hosts}) > 1:
        raise ValueError("smp.init: the ranks were given different transports")
    one_host = len({host.partition(" ")[0] for host in hosts}) == 1
    if wanted == "shared memory" and not one_host:
        raise ValueError("smp.init: transport 'shared memory' needs all ranks on one host")
    if one_host and wanted != "gloo":
        name = _everyones(store, f"{prefix}/name", world, uuid.uuid4().hex)[0]
        return _core.join_shared_memory(
            f"autopart-{name}", world.rank, world.size, join_deadline_s=config.deadline
        )
    return _join_gloo(store, prefix, world, config)


def _store(world: World) -> Store:
    """The launcher's TCP store; without a launcher that has one, rank 0 hosts it."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        raise RuntimeError(
            f"smp.init: rank {world.rank} of {world.size} has no MASTER_ADDR and MASTER_PORT in "
            "its environment: start with torchrun, or set them"
        )
    launcher_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return _store_at(address, int(port), world.rank == 0 and not launcher_hosts)


@functools.cache
def _store_at(address: str, port: int, hosts: bool) -> Store:
    """One store for the life of the process.

    Were it closed at smp.shutdown, a rank that is already in its next smp.init could meet the old
    server and lose it, with what it had written there.
    multi_tenant: torch.distributed.init_process_group may share the same port later.
    """
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        address,
        port,
        is_master=hosts,
        timeout=timedelta(seconds=300),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _everyones(store: Store, key: str, world: World, value: str) -> list[str]:
    """The value that each rank gave, by rank."""
    store.set(f"{key}/{world.rank}", value)
    return [store.get(f"{key}/{rank}").decode() for rank in range(world.size)]


def _host() -> str:
    """Equal for processes that share memory: host, boot and the mount of /dev/shm."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        shared = os.stat("/dev/shm")
    except OSError:
        return f"{socket.gethostname()}/{uuid.uuid4().hex}"
    return f"{socket.gethostname()}/{boot}/{shared.st_dev}/{shared.st_ino}"


def _join_gloo(store: Store, prefix: str, world: World, config: Config) -> _core.Communicator:
    """A Gloo group of autopart's own, never the user's default group."""
    from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

    deadline = timedelta(seconds=config.deadline)
    group = ProcessGroupGloo(PrefixStore(f"{prefix}/gloo", store), world.rank, world.size, deadline)
    return _core.c10d_communicator(group, store, prefix)
