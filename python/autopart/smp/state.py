"""The job: configuration, ranks and their layout. One a process, made by smp.init()."""

from __future__ import annotations

import enum
import json
import os
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import _core
    from .model import DistributedModel


@dataclass
class Config:
    """Keys of smp.init({...}) that mean something here; names and defaults as in SMP v1."""

    pipeline_parallel_degree: int = 1
    microbatches: int = 1
    pipeline: str = "interleaved"
    placement_strategy: str = "cluster"
    auto_partition: bool = True
    default_partition: int | None = None
    ddp: bool = False
    # Own keys.
    plan: str | None = None  # file of a plan to train by
    transport: str | None = None  # "shared memory" or "gloo"; default: what the ranks share
    deadline: float = 300.0  # seconds that any wait may take
    optimizer: str = "adam"  # whose state the planner counts: "adam" or "sgd"
    device: str | None = None  # plan by this device's estimated times instead of measured ones
    seed: int | None = None  # of dropout; default: rank 0's torch.initial_seed()
    check_finite: bool = False

    # Read by programs as smp.state.cfg.<key>.
    fp16: bool = False
    bf16: bool = False
    prescaled_batch: bool = False
    shard_optimizer_state: bool = False
    sharded_data_parallel_degree: int = 1
    tensor_parallel_degree: int = 1

    ALIASES = {"partitions": "pipeline_parallel_degree"}  # noqa: RUF012


# Accepted without effect: knobs of SMP v1 that have no counterpart, or nothing to do on one device.
_IGNORED = frozenset(
    {
        *("active_microbatches", "optimize", "memory_weight", "contiguous", "ddp_port"),
        *("ddp_dist_backend", "horovod", "deterministic_server", "load_partition"),
        *("partition_file", "trace_device", "skip_tracing", "fast_mode", "static_mode"),
        *("tensor_parallel_seed", "checkpoint_attentions", "offload_activations"),
        *("activation_loading_horizon", "delayed_parameter_initialization", "herring"),
    }
)
# Would change results or memory, and are not there yet: only their off value is accepted.
_UNSUPPORTED = {
    "tensor_parallel_degree": 1,
    "sharded_data_parallel_degree": 1,
    "shard_optimizer_state": False,
    "fp16": False,
    "bf16": False,
    "fp16_params": False,
    "prescaled_batch": False,
}
_PIPELINES = {"simple": "gpipe", "interleaved": "1f1b", "_only_forward": "forward"}
_ORDERS = {"cluster": "DPT", "spread": "TPD"}


def read_config(given: dict[str, Any] | None) -> Config:
    """The given keys, overridden by SM_HP_MP_PARAMETERS. ValueError names the key at fault."""
    keys = dict(given or {})
    environment = os.environ.get("SM_HP_MP_PARAMETERS")
    if environment:
        keys.update(json.loads(environment))
    config = Config()
    known = {f.name: f for f in fields(Config)}
    seen: dict[str, Any] = {}
    for key, value in keys.items():
        name = Config.ALIASES.get(key, key)
        if name in seen and seen[name] != value:
            raise ValueError(f"smp.init: {key}={value!r} contradicts {name}={seen[name]!r}")
        seen[name] = value
        if name in _UNSUPPORTED and value != _UNSUPPORTED[name]:
            raise ValueError(f"smp.init: {name}={value!r} is not supported yet")
        if name in known:
            setattr(config, name, value)
        elif name not in _IGNORED and name not in _UNSUPPORTED:
            warnings.warn(f"smp.init: unknown key {key!r} is ignored", stacklevel=3)
    for name in ("pipeline_parallel_degree", "microbatches"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"smp.init: {name} must be a positive integer, not {value!r}")
    if config.pipeline not in _PIPELINES:
        names = ", ".join(_PIPELINES)
        raise ValueError(f"smp.init: pipeline={config.pipeline!r} is not one of {names}")
    order = _ORDERS.get(config.placement_strategy, config.placement_strategy)
    if sorted(order) != ["D", "P", "T"]:
        raise ValueError(
            f"smp.init: placement_strategy={config.placement_strategy!r} is neither cluster, "
            "spread nor an order of the letters D, P and T"
        )
    if not config.auto_partition:
        home = config.default_partition
        if home is None:
            raise ValueError("smp.init: auto_partition=False needs default_partition")
        if not 0 <= home < config.pipeline_parallel_degree:
            raise ValueError(
                f"smp.init: default_partition={home} is not in 0 ... "
                f"{config.pipeline_parallel_degree - 1}"
            )
    return config


def _environment_int(*names: str) -> int | None:
    for name in names:
        if os.environ.get(name, "") != "":
            return int(os.environ[name])
    return None


@dataclass(frozen=True)
class World:
    """Who this process is, from the launcher's environment (torchrun, mpirun, srun); else alone."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @staticmethod
    def from_environment() -> World:
        rank = _environment_int("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
        size = _environment_int("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
        if rank is None or size is None:
            rank, size = 0, 1
        local_rank = _environment_int("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
        local_size = _environment_int(
            "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"
        )
        return World(
            rank,
            size,
            rank if local_rank is None else local_rank,
            size if local_size is None else local_size,
        )


@dataclass(frozen=True)
class Layout:
    """Which rank is which pipeline stage of which replica."""

    world_size: int
    pp_size: int
    pipeline_varies_fastest: bool  # cluster: ranks of one replica are neighbours

    @staticmethod
    def of(config: Config, world_size: int) -> Layout:
        degree = config.pipeline_parallel_degree
        if world_size % degree:
            raise ValueError(
                f"smp.init: {world_size} processes cannot be split into pipelines of "
                f"{degree}: start a multiple of pipeline_parallel_degree={degree}"
            )
        order = _ORDERS.get(config.placement_strategy, config.placement_strategy)
        return Layout(world_size, degree, order.index("P") > order.index("D"))

    @property
    def dp_size(self) -> int:
        return self.world_size // self.pp_size

    def rank_of(self, pp_rank: int, dp_rank: int) -> int:
        if self.pipeline_varies_fastest:
            return dp_rank * self.pp_size + pp_rank
        return pp_rank * self.dp_size + dp_rank

    def pp_rank(self, rank: int) -> int:
        return rank % self.pp_size if self.pipeline_varies_fastest else rank // self.dp_size

    def dp_rank(self, rank: int) -> int:
        return rank // self.pp_size if self.pipeline_varies_fastest else rank % self.dp_size

    def pp_group(self, dp_rank: int) -> list[int]:
        return [self.rank_of(p, dp_rank) for p in range(self.pp_size)]

    def dp_group(self, pp_rank: int) -> list[int]:
        return [self.rank_of(pp_rank, d) for d in range(self.dp_size)]


class CommGroup(enum.Enum):
    WORLD = "world"
    MP_GROUP = "mp"
    DP_GROUP = "dp"
    PP_GROUP = "pp"
    TP_GROUP = "tp"
    RDP_GROUP = "rdp"


class RankType(enum.Enum):
    WORLD_RANK = "world"
    MP_RANK = "mp"
    DP_RANK = "dp"
    PP_RANK = "pp"
    TP_RANK = "tp"
    RDP_RANK = "rdp"


@dataclass
class State:
    """smp.state: everything that smp.init() made."""

    cfg: Config = field(default_factory=Config)
    world: World | None = None
    layout: Layout | None = None
    communicator: _core.Communicator | None = None
    tracing: bool = False
    steps: int = 0  # training steps done: keys random numbers
    _model: Callable[[], DistributedModel | None] = field(default=lambda: None)

    @property
    def initialized(self) -> bool:
        return self.world is not None

    @property
    def rank(self) -> int:
        return self._world().rank

    @property
    def pp_rank(self) -> int:
        return self._layout().pp_rank(self.rank)

    @property
    def dp_rank(self) -> int:
        return self._layout().dp_rank(self.rank)

    @property
    def comm(self) -> _core.Communicator:
        self._world()
        assert self.communicator is not None
        return self.communicator

    @property
    def schedule(self) -> str:
        return _PIPELINES[self.cfg.pipeline]

    @property
    def model(self) -> DistributedModel | None:
        """The one that lives."""
        return self._model()

    def set_model(self, model: DistributedModel) -> None:
        self._model = weakref.ref(model)
        self.steps = 0

    def _world(self) -> World:
        if self.world is None:
            raise RuntimeError("call smp.init() first")
        return self.world

    def _layout(self) -> Layout:
        self._world()
        assert self.layout is not None
        return self.layout

    def group(self, kind: CommGroup | RankType) -> list[int]:
        """Global ranks of the group of this kind that this rank is in, in its order."""
        layout = self._layout()
        if kind.value == "world":
            return list(range(layout.world_size))
        if kind.value in ("mp", "pp"):
            return layout.pp_group(self.dp_rank)
        if kind.value in ("dp", "rdp"):
            return layout.dp_group(self.pp_rank)
        return [self.rank]


state = State()
