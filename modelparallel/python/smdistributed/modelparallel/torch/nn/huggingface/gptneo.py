"""GPT-Neo: its blocks and its language model as distributed modules, and its state_dicts."""

from __future__ import annotations

from typing import Any

from .hooks import Family, Hooks, activation, layer_hooks, model_hooks
from .keys import SAME, Names, StateDict


def _layer(config: Any) -> dict[str, Any]:
    size = config.hidden_size
    kinds = enumerate(config.attention_layers)
    return {
        "num_attention_heads": config.num_heads,
        "attention_head_size": size // config.num_heads,
        "hidden_size": size,
        "intermediate_size": 4 * size if config.intermediate_size is None else config.intermediate_size,
        "attention_dropout_prob": float(config.attention_dropout),
        "hidden_dropout_prob": float(config.resid_dropout),
        "activation": activation(config.activation_function),
        "layernorm_epsilon": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.max_position_embeddings,
        "pre_layernorm": True,
        "post_layernorm": False,
        "add_residual": True,
        "use_qkv_bias": False,
        # The scores of GPT-Neo are not divided, and their product is taken in float32 for it.
        "scale_attention_scores": False,
        "attention_in_fp32": True,
        "window_size": config.window_size,
        "local_layers": [index for index, kind in kinds if kind == "local"],
    }


def _model(config: Any) -> dict[str, Any]:
    return {
        **_layer(config),
        "num_layers": config.num_layers,
        "vocab_size": config.vocab_size,
        "num_positions": config.max_position_embeddings,
        "embedding_dropout_prob": float(config.embed_dropout),
        "tie_input_output_embedding": config.tie_word_embeddings,
        "final_layernorm": True,
    }


NAMES = Names(
    "transformer.seq_layers",
    "transformer.h",
    (
        (("attention.pre_layernorm",), "ln_1", SAME),
        (("attention.query",), "attn.attention.q_proj", SAME),
        (("attention.key",), "attn.attention.k_proj", SAME),
        (("attention.value",), "attn.attention.v_proj", SAME),
        (("attention.dense",), "attn.attention.out_proj", SAME),
        (("output.pre_layernorm",), "ln_2", SAME),
        (("output.dense1",), "mlp.c_fc", SAME),
        (("output.dense2",), "mlp.c_proj", SAME),
    ),
    {
        "word_embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "transformer.layernorm": "transformer.ln_f",
    },
    tied_head=True,
)
FAMILY = Family(
    "transformers.models.gpt_neo.modeling_gpt_neo",
    "GPTNeoBlock",
    _layer,
    model="GPTNeoForCausalLM",
    model_options=_model,
)


def get_hf_gptneo_transformer_layer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPTNeoBlock with DistributedTransformerLayer."""
    return layer_hooks(FAMILY)


def get_hf_gptneo_transformer_lm_head_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPTNeoForCausalLM with DistributedTransformerLMHead."""
    return model_hooks(FAMILY)


def translate_state_dict_to_hf_gptneo(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A full state_dict of a distributed GPT-Neo as one of GPTNeoForCausalLM. max_seq_len: accepted, of no effect."""
    del max_seq_len
    return NAMES.to_theirs(state_dict)


def translate_hf_state_dict_to_smdistributed_gptneo(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A state_dict of GPTNeoForCausalLM as one that the distributed model loads."""
    del max_seq_len
    return NAMES.to_ours(state_dict)


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gptneo
