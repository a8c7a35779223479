"""Model parallelism by SMP's names: `import autopart.smp as smp`.

smp.init() reads the launcher's environment (torchrun, mpirun). DistributedModel wraps the module,
@smp.step the code that runs once a micro-batch; where each layer goes is planned at the first step.
"""

from torch.nn.utils import clip_grad_value_

from . import model
from .clip import clip_grad_norm_
from .collectives import (
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    mp_barrier,
    recv_from,
    send,
)
from .job import init, install, shutdown
from .model import DistributedModel
from .optimizer import DistributedOptimizer
from .partition import partition, set_partition
from .ranks import (
    dp_rank,
    dp_size,
    get_dp_group,
    get_dp_process_group,
    get_mp_group,
    get_mp_process_group,
    get_pp_group,
    get_pp_process_group,
    get_rdp_group,
    get_rdp_process_group,
    get_tp_group,
    get_tp_process_group,
    get_world_group,
    get_world_process_group,
    is_initialized,
    is_tracing,
    local_rank,
    local_size,
    mp_rank,
    mp_size,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    size,
    tp_rank,
    tp_size,
)
from .state import CommGroup, RankType, state
from .step import StepFunction, StepOutput, step

WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
PP_GROUP = CommGroup.PP_GROUP
TP_GROUP = CommGroup.TP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP


__all__ = [
    "DP_GROUP",
    "MP_GROUP",
    "PP_GROUP",
    "RDP_GROUP",
    "TP_GROUP",
    "WORLD",
    "CommGroup",
    "DistributedModel",
    "DistributedOptimizer",
    "RankType",
    "StepFunction",
    "StepOutput",
    "allgather",
    "barrier",
    "broadcast",
    "clip_grad_norm_",
    "clip_grad_value_",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_group",
    "get_world_process_group",
    "init",
    "install",
    "is_initialized",
    "is_tracing",
    "local_rank",
    "local_size",
    "model",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "partition",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "send",
    "set_partition",
    "shutdown",
    "size",
    "state",
    "step",
    "tp_rank",
    "tp_size",
]
