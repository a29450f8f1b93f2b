"""GPT-NeoX: its layers and its language model as distributed modules, and its state_dicts."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...state import state
from ...tp.registry import CannotDistribute
from .hooks import Family, Hooks, activation, config_of, layer_hooks, model_hooks
from .keys import BY_HEAD, SAME, Names, StateDict


def _rotary(config: Any) -> tuple[float, float]:
    """(base, share of the channels of a head that are rotated)."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise CannotDistribute(f"its rotary embedding is scaled ({rope}), which is not supported")
    base = rope.get("rope_theta", getattr(config, "rotary_emb_base", 10000))
    return float(base), float(rope.get("partial_rotary_factor", getattr(config, "rotary_pct", 0.25)))


def _layer(config: Any) -> dict[str, Any]:
    base, share = _rotary(config)
    head = config.hidden_size // config.num_attention_heads
    bias = getattr(config, "attention_bias", True)
    return {
        "num_attention_heads": config.num_attention_heads,
        "attention_head_size": head,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_dropout_prob": float(getattr(config, "attention_dropout", 0.0)),
        "hidden_dropout_prob": float(getattr(config, "hidden_dropout", 0.0)),
        "activation": activation(config.hidden_act),
        "layernorm_epsilon": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.max_position_embeddings,
        "pre_layernorm": True,
        "post_layernorm": False,
        "add_residual": True,
        "use_qkv_bias": bias,
        "use_attn_dense_bias": bias,
        "rotary_dim": int(head * share),
        "rotary_emb_base": base,
        "gpt_neox_type_rotary": True,
        "parallel_attn_output": config.use_parallel_residual,
    }


def _model(config: Any) -> dict[str, Any]:
    return {
        **_layer(config),
        "num_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "num_positions": 0,
        "tie_input_output_embedding": config.tie_word_embeddings,
        "final_layernorm": True,
    }


NAMES = Names(
    "transformer.seq_layers",
    "gpt_neox.layers",
    (
        (("attention.pre_layernorm",), "input_layernorm", SAME),
        (("attention.query", "attention.key", "attention.value"), "attention.query_key_value", BY_HEAD),
        (("attention.dense",), "attention.dense", SAME),
        (("output.pre_layernorm",), "post_attention_layernorm", SAME),
        (("output.dense1",), "mlp.dense_h_to_4h", SAME),
        (("output.dense2",), "mlp.dense_4h_to_h", SAME),
    ),
    {"word_embedding": "gpt_neox.embed_in", "transformer.layernorm": "gpt_neox.final_layer_norm"},
)
# Before release 5 of transformers the head had a name of its own.
_OLDER = dataclasses.replace(NAMES, top={**NAMES.top, "lm_head": "embed_out"})
FAMILY = Family(
    "transformers.models.gpt_neox.modeling_gpt_neox",
    "GPTNeoXLayer",
    _layer,
    model="GPTNeoXForCausalLM",
    model_options=_model,
)


def get_hf_gptneox_transformer_layer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPTNeoXLayer with DistributedTransformerLayer."""
    return layer_hooks(FAMILY)


def get_hf_gptneox_transformer_lm_head_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPTNeoXForCausalLM with DistributedTransformerLMHead."""
    return model_hooks(FAMILY)


def translate_state_dict_to_hf_gptneox(
    state_dict: StateDict, max_seq_len: int | None = None, num_attention_heads: int | None = None
) -> StateDict:
    """A full state_dict of a distributed GPT-NeoX as one of GPTNeoXForCausalLM.

    max_seq_len: accepted, of no effect. num_attention_heads: that of the model, which the weights do not tell; None
    takes it from the model given to smp.DistributedModel (else SMPValueError).
    """
    del max_seq_len
    return _names_of_installed().to_theirs(state_dict, heads_of_model(num_attention_heads))


def translate_hf_state_dict_to_smdistributed_gptneox(
    state_dict: StateDict, max_seq_len: int | None = None, num_attention_heads: int | None = None
) -> StateDict:
    """A state_dict of GPTNeoXForCausalLM as one that the distributed model loads; arguments as above."""
    del max_seq_len
    names = _OLDER if any(key.endswith("embed_out.weight") for key in state_dict) else NAMES
    return names.to_ours(state_dict, heads_of_model(num_attention_heads))


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gptneox


def heads_of_model(given: int | None) -> int | None:
    """`given`, or the number of attention heads of the model given to smp.DistributedModel; None if there is none."""
    if given is None and state.model is not None:
        config = config_of(state.model.module)
        return None if config is None else config.num_attention_heads
    return given


def _names_of_installed() -> Names:
    tied = getattr(FAMILY.class_of("GPTNeoXForCausalLM"), "_tied_weights_keys", None) or ()
    return _OLDER if any("embed_out" in key for key in tied) else NAMES
