"""The public API: `import smdistributed.modelparallel.torch as smp`. Re-exports only, a block for each module."""

from . import amp, nn, optimizers, tp
from .activation import set_activation_checkpointing
from .checkpoint import load, resume_from_checkpoint, save, save_checkpoint
from .comm import (
    allgather,
    barrier,
    broadcast,
    dp_barrier,
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
    get_world_process_group,
    is_initialized,
    local_rank,
    local_size,
    mp_barrier,
    mp_rank,
    mp_size,
    num_microbatches,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    recv_from,
    send,
    size,
    tp_rank,
    tp_size,
)
from .init import init, shutdown
from .model import DistributedModel
from .optimizer import DistributedOptimizer, clip_grad_norm_
from .partition import delay_param_initialization, explain, is_tracing, model_creation, partition, set_partition
from .state import state
from .step import step
from .step_output import StepOutput
from .topology import CommGroup, RankType
from .tp import set_tensor_parallelism, tensor_parallelism, tp_register, tp_register_with_module

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
    "StepOutput",
    "allgather",
    "amp",
    "barrier",
    "broadcast",
    "clip_grad_norm_",
    "delay_param_initialization",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "explain",
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
    "get_world_process_group",
    "init",
    "is_initialized",
    "is_tracing",
    "load",
    "local_rank",
    "local_size",
    "model_creation",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "nn",
    "num_microbatches",
    "optimizers",
    "partition",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
    "send",
    "set_activation_checkpointing",
    "set_partition",
    "set_tensor_parallelism",
    "shutdown",
    "size",
    "state",
    "step",
    "tensor_parallelism",
    "tp",
    "tp_rank",
    "tp_register",
    "tp_register_with_module",
    "tp_size",
]
