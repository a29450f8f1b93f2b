"""Every name that open client scripts take from the library is there.

The scripts: transformers' Trainer, the acceptance test of the vendor's containers, and the GPT-2, GPT-J and BERT
examples that were published for the original library.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import smdistributed.modelparallel
import smdistributed.modelparallel.torch as smp

# What is written after `smp.`; by what it belongs to.
FUNCTIONS = """
    allgather amp.GradScaler barrier broadcast delay_param_initialization dp_barrier dp_rank dp_size get_dp_group
    get_dp_process_group get_mp_group get_mp_process_group get_pp_group get_pp_process_group get_rdp_group
    get_rdp_process_group get_tp_group get_tp_process_group get_world_process_group init is_initialized is_tracing load
    local_rank local_size model_creation mp_barrier mp_rank mp_size num_microbatches partition pp_rank pp_size rank
    rdp_rank rdp_size recv_from resume_from_checkpoint save save_checkpoint send set_activation_checkpointing
    set_partition set_tensor_parallelism shutdown size step tensor_parallelism tp_rank tp_register
    tp_register_with_module tp_size
"""
CLASSES = """
    CommGroup.DP_GROUP CommGroup.MP_GROUP CommGroup.PP_GROUP CommGroup.RDP_GROUP CommGroup.TP_GROUP CommGroup.WORLD
    DP_GROUP MP_GROUP PP_GROUP RDP_GROUP TP_GROUP WORLD RankType.DP_RANK RankType.MP_RANK RankType.PP_RANK
    RankType.RDP_RANK RankType.TP_RANK RankType.WORLD_RANK DistributedModel DistributedOptimizer model.DistributedModel
    nn.DistributedAttentionLayer nn.DistributedEmbedding nn.DistributedLinear nn.DistributedTransformer
    nn.DistributedTransformerLMHead nn.DistributedTransformerLayer nn.DistributedTransformerOutputLayer
    nn.FusedLayerNorm state.cfg state.module_manager.translate_functions
"""
METHODS = {
    "DistributedModel": """
        backward cpu default_reducer_named_parameters distributed_modules get_module is_distributed_buffer
        is_distributed_parameter is_scaled_batch_buffer is_scaled_batch_parameter join load_state_dict local_buffers
        local_modules local_named_buffers local_named_modules local_named_parameters local_parameters local_state_dict
        partitioned register_comm_hook register_post_partition_hook register_post_step_hook
        scaled_batch_reducer_named_parameters state_dict
    """,
    "StepOutput": "concat detach reduce_mean reduce_sum stack",
}
IMPORTS = {
    "smdistributed.modelparallel.torch": "DistributedModel DistributedOptimizer step",
    "smdistributed.modelparallel.torch.amp": "GradScaler",
    "smdistributed.modelparallel.torch.exceptions": "SMPError StepError",
    "smdistributed.modelparallel.backend.exceptions": "SMPError",
    "smdistributed.modelparallel.torch.nn": "FusedLayerNorm FlashAttentionLayer DistributedLinear",
    "smdistributed.modelparallel.torch.nn.huggingface.gpt2": """
        get_hf_gpt2_transformer_layer_hooks translate_hf_state_dict_to_smdistributed translate_state_dict_to_hf_gpt2
    """,
    "smdistributed.modelparallel.torch.nn.huggingface.gptj": "",
    "smdistributed.modelparallel.torch.nn.huggingface.gptneo": "",
    "smdistributed.modelparallel.torch.nn.huggingface.gptneox": "",
    "smdistributed.modelparallel.torch.nn.huggingface.bert": "",
    "smdistributed.modelparallel.torch.nn.huggingface.roberta": "",
    "smdistributed.modelparallel.torch.nn.huggingface.t5": "",
    "smdistributed.modelparallel.torch.optimizers": "FusedAdam FusedLAMB FusedLamb FusedNovoGrad",
    "smdistributed.modelparallel.torch.patches.checkpoint": "checkpoint checkpoint_sequential",
    "smdistributed.modelparallel.torch.utils": "rmsg",
    "smdistributed.modelparallel.test.torch.utils": "dump_model verify",
}


def attribute(start: Any, path: str) -> Any:
    for name in path.split("."):
        start = getattr(start, name)
    return start


@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_functions(name: str) -> None:
    assert callable(attribute(smp, name))


@pytest.mark.parametrize("name", CLASSES.split())
def test_classes_and_values(name: str) -> None:
    if name == "state.cfg":  # has a value from smp.init on
        assert "cfg" in vars(type(smp.state)).get("__annotations__", {}) or hasattr(smp.state, "cfg")
    else:
        assert attribute(smp, name) is not None


@pytest.mark.parametrize(("kind", "names"), METHODS.items())
def test_methods(kind: str, names: str) -> None:
    assert [name for name in names.split() if not hasattr(getattr(smp, kind), name)] == []


@pytest.mark.parametrize(("module", "names"), IMPORTS.items())
def test_imports(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_the_version_that_clients_compare() -> None:
    """transformers takes 1.10 and later for the checkpoints and half precision of that release."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", smdistributed.modelparallel.__version__)
    assert numbers is not None
    assert (1, 10) <= tuple(int(number) for number in numbers.groups()) < (2, 0)
