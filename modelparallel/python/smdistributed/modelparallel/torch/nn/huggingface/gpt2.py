"""GPT-2: its blocks and its language model as distributed modules, and its state_dicts."""

from __future__ import annotations

from typing import Any

from .gpt_options import layer_options, model_options
from .hooks import Family, Hooks, layer_hooks, model_hooks, no_cross_attention
from .keys import CONV1D, SAME, Names, StateDict, in_place


def _layer(config: Any) -> dict[str, Any]:
    no_cross_attention(config)
    return {
        **layer_options(config),
        "scale_attention_scores": config.scale_attn_weights,
        "scale_attn_by_layer_idx": config.scale_attn_by_inverse_layer_idx,
        "attention_in_fp32": config.reorder_and_upcast_attn,
    }


def _model(config: Any) -> dict[str, Any]:
    return {
        **_layer(config),
        **model_options(config),
        "num_positions": config.n_positions,
    }


NAMES = Names(
    "transformer.seq_layers",
    "transformer.h",
    (
        (("attention.pre_layernorm",), "ln_1", SAME),
        (("attention.query", "attention.key", "attention.value"), "attn.c_attn", CONV1D),
        (("attention.dense",), "attn.c_proj", CONV1D),
        (("output.pre_layernorm",), "ln_2", SAME),
        (("output.dense1",), "mlp.c_fc", CONV1D),
        (("output.dense2",), "mlp.c_proj", CONV1D),
    ),
    {
        "word_embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "transformer.layernorm": "transformer.ln_f",
    },
    tied_head=True,
)
FAMILY = Family(
    "transformers.models.gpt2.modeling_gpt2", "GPT2Block", _layer, model="GPT2LMHeadModel", model_options=_model
)


def get_hf_gpt2_transformer_layer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPT2Block with DistributedTransformerLayer."""
    return layer_hooks(FAMILY)


def get_hf_gpt2_transformer_lm_head_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register GPT2LMHeadModel with DistributedTransformerLMHead."""
    return model_hooks(FAMILY)


def translate_state_dict_to_hf_gpt2(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A full state_dict of a distributed GPT-2 as one of GPT2LMHeadModel.

    max_seq_len: accepted; the masks that older releases of transformers saved with a model are no longer wanted.
    """
    del max_seq_len
    return NAMES.to_theirs(state_dict)


def translate_hf_state_dict_to_smdistributed_gpt2(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A state_dict of GPT2LMHeadModel as one that the distributed model loads."""
    del max_seq_len
    return NAMES.to_ours(state_dict)


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gpt2


# As the two before, where only the blocks are distributed.
translate_layer_state_dict_to_hf_gpt2_block, translate_hf_block_state_dict_to_smdistributed = in_place(lambda: NAMES)
