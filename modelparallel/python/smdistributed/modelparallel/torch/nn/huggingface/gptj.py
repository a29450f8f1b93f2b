"""GPT-J: its blocks and its language model as distributed modules, and its state_dicts."""

from __future__ import annotations

from typing import Any

from .gpt_options import layer_options, model_options
from .hooks import Family, Hooks, layer_hooks, model_hooks
from .keys import SAME, Names, StateDict


def _layer(config: Any) -> dict[str, Any]:
    return {
        **layer_options(config),
        "use_qkv_bias": False,
        "use_attn_dense_bias": False,
        "rotary_dim": config.rotary_dim or config.n_embd // config.n_head,
        "parallel_attn_output": True,
        "shared_pre_layernorm": True,
    }


def _model(config: Any) -> dict[str, Any]:
    return {
        **_layer(config),
        **model_options(config),
        "num_positions": 0,
        "use_lm_head_bias": True,
    }


NAMES = Names(
    "transformer.seq_layers",
    "transformer.h",
    (
        (("attention.pre_layernorm",), "ln_1", SAME),
        (("attention.query",), "attn.q_proj", SAME),
        (("attention.key",), "attn.k_proj", SAME),
        (("attention.value",), "attn.v_proj", SAME),
        (("attention.dense",), "attn.out_proj", SAME),
        (("output.dense1",), "mlp.fc_in", SAME),
        (("output.dense2",), "mlp.fc_out", SAME),
    ),
    {"word_embedding": "transformer.wte", "transformer.layernorm": "transformer.ln_f"},
)
FAMILY = Family(
    "transformers.models.gptj.modeling_gptj", "GPTJBlock", _layer, model="GPTJForCausalLM", model_options=_model
)


def get_hf_gptj_transformer_layer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPTJBlock with DistributedTransformerLayer."""
    return layer_hooks(FAMILY)


def get_hf_gptj_transformer_lm_head_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPTJForCausalLM with DistributedTransformerLMHead."""
    return model_hooks(FAMILY)


def translate_state_dict_to_hf_gptj(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A full state_dict of a distributed GPT-J as one of GPTJForCausalLM. max_seq_len: accepted, of no effect."""
    del max_seq_len
    return NAMES.to_theirs(state_dict)


def translate_hf_state_dict_to_smdistributed_gptj(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A state_dict of GPTJForCausalLM as one that the distributed model loads."""
    del max_seq_len
    return NAMES.to_ours(state_dict)


translate_hf_gptj_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gptj
translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gptj
