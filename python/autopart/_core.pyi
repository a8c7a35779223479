"""Types of the extension. Sizes in bytes, times in milliseconds, deadlines in seconds."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__version__: str

class InputSpec:
    name: str
    batch_axis: int
    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        sizes: Sequence[int],
        bound: int | None = None,
        batch_axis: int = 0,
    ) -> None: ...

class GraphParameter:
    name: str
    aliases: list[str]
    is_buffer: bool
    trains: bool
    used: bool
    dtype: torch.dtype
    sizes: list[int]

class OpGraph:
    hash: str
    parameters: list[GraphParameter]
    num_nodes: int
    num_inputs: int
    num_outputs: int
    loss_output: int | None
    @staticmethod
    def from_json(text: str) -> OpGraph: ...
    def to_json(self) -> str: ...

class Model:
    graph: OpGraph
    tensors: dict[str, Tensor]
    def __init__(self, graph: OpGraph, tensors: Mapping[str, Tensor]) -> None: ...

def import_torchscript(
    script: torch.jit.ScriptModule,
    inputs: Sequence[InputSpec],
    loss_output: int | None,
    loss_is_sum: bool,
    strip_prefix: str,
    training: bool,
    constants: Sequence[str],
) -> Model: ...
def load_model(path: str) -> Model: ...
def load_graph(path: str) -> OpGraph: ...

class CostNode:
    name: str
    module: str
    parameters: list[int]
    group: int
    copyable: bool

class CostValue:
    producer: int
    consumers: list[int]

class CostGraph:
    nodes: list[CostNode]
    values: list[CostValue]
    @staticmethod
    def from_json(text: str) -> CostGraph: ...
    def to_json(self) -> str: ...

class Cluster:
    num_devices: int
    @staticmethod
    def uniform(device: str, num_devices: int) -> Cluster: ...
    @staticmethod
    def from_yaml(text: str) -> Cluster: ...

def build_cost_graph(
    graph: OpGraph, device: str = "", training: bool = True, cluster: Cluster | None = None
) -> CostGraph: ...

class PlanStage:
    index: int
    ranks: list[int]
    nodes: list[int]
    copied_nodes: list[int]
    owned_parameters: list[int]
    copied_parameters: list[int]
    forward_ms: float
    backward_ms: float
    send_bytes: int
    peak_memory_bytes: int

class Plan:
    model_hash: str
    num_devices: int
    schedule: str
    micro_batches: int
    predicted_step_ms: float
    bound_ms: float
    stages: list[PlanStage]
    @staticmethod
    def from_json(text: str) -> Plan: ...
    def to_json(self) -> str: ...
    def report(self, format: str = "text") -> str: ...
    def validate(self, cost_graph: CostGraph) -> None: ...
    def cost_anew(self, cost_graph: CostGraph) -> Plan: ...

def report_formats() -> list[str]: ...

class PlannerOptions:
    """What the user fixes stays fixed; what is None is searched."""

    stages: int | None
    replicas: int | None
    micro_batches: int | None
    batch: int | None  # samples in a step
    schedule: str | None
    recompute: str | None  # "none", "all", "auto": the least that fits
    shard_optimizer: bool | None  # over the replicas of a stage
    memory_bytes: int | None  # of each device, instead of its own
    dtype: str  # that the costs are of
    optimizer: str
    training: bool
    pinned_stage_of_node: Sequence[int]  # empty, or one per node, -1 for free
    pins: Sequence[tuple[str, int]]  # (module, stage)
    same_stage: Sequence[Sequence[str]]  # modules that share a stage
    search: str  # "executable" or "all"
    iterations: int
    seed: int
    def __init__(
        self,
        *,
        stages: int | None = None,
        replicas: int | None = None,
        micro_batches: int | None = None,
        batch: int | None = None,
        schedule: str | None = None,
        recompute: str | None = None,
        shard_optimizer: bool | None = None,
        memory_bytes: int | None = None,
        dtype: str = "fp32",
        optimizer: str = "adam",
        training: bool = True,
        pinned_stage_of_node: Sequence[int] = (),
        pins: Sequence[tuple[str, int]] = (),
        same_stage: Sequence[Sequence[str]] = (),
        search: str = "executable",
        iterations: int = 32,
        seed: int = 0,
    ) -> None: ...

def make_plan(
    cost_graph: CostGraph,
    cluster: Cluster,
    options: PlannerOptions = ...,
    model_name: str = "",
) -> Plan: ...

class Communicator:
    rank: int
    size: int
    transport: str
    aborted: str | None
    def send(self, peers: Sequence[int], data: Tensor, deadline_s: float) -> None: ...
    def receive(self, peer: int, data: Tensor, deadline_s: float) -> None: ...
    def broadcast(
        self, group: Sequence[int], root: int, data: Tensor, deadline_s: float
    ) -> None: ...
    def all_gather(
        self, group: Sequence[int], mine: Tensor, all: Tensor, deadline_s: float
    ) -> None: ...
    def barrier(self, group: Sequence[int], deadline_s: float) -> None: ...
    def abort(self, what: str) -> None: ...

def single_rank_communicator() -> Communicator: ...
def join_shared_memory(name: str, rank: int, size: int, join_deadline_s: float) -> Communicator: ...
def c10d_communicator(backend: object, store: object, name: str) -> Communicator: ...

class StepResult:
    loss: Tensor
    outputs: list[list[object]]
    step_ms: float
    peak_bytes: list[int]

class Executor:
    step_count: int
    def __init__(
        self,
        plan: Plan,
        model: Model,
        *,
        one_thread: bool,
        deadline_s: float,
        seed: int,
        check_finite: bool,
    ) -> None: ...
    def step(self, inputs: Sequence[Tensor]) -> StepResult: ...
    def step_micro_batches(self, inputs: Sequence[Sequence[Tensor]]) -> StepResult: ...
    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]: ...
    def parameters(self) -> dict[str, Tensor]: ...
    def rank_parameters(self, rank: int) -> dict[str, Tensor]: ...
    def zero_grad(self) -> None: ...

class RankStepOutput:
    outputs: list[list[object]]
    peak_bytes: int
    step_ms: float

class RankExecutor:
    def __init__(
        self,
        graph: OpGraph,
        plan: Plan,
        rank: int,
        parameters: Mapping[str, Tensor],
        communicator: Communicator,
        *,
        deadline_s: float,
        seed: int,
        check_finite: bool,
    ) -> None: ...
    def step(
        self,
        step: int,
        *,
        training: bool,
        backward: bool,
        inputs: Sequence[Sequence[Tensor]],
        weights: Sequence[float],
        communicator: Communicator,
    ) -> RankStepOutput: ...
    def describe(self) -> str: ...
