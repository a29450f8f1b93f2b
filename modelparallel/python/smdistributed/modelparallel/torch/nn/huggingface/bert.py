"""BERT: its layers and its encoder as distributed modules, and its state_dicts."""

from __future__ import annotations

from typing import Any

from .hooks import Family, Hooks, activation, encoder_hooks, layer_hooks, no_cross_attention
from .keys import SAME, Names, StateDict


def layer_options(config: Any) -> dict[str, Any]:
    """Constructor arguments of a layer, for BERT and those that have its layers."""
    no_cross_attention(config)
    kind = getattr(config, "position_embedding_type", "absolute")
    if kind not in (None, "absolute"):
        no_relative_positions(kind)
    return {
        "num_attention_heads": config.num_attention_heads,
        "attention_head_size": config.hidden_size // config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_dropout_prob": config.attention_probs_dropout_prob,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "activation": activation(config.hidden_act),
        "layernorm_epsilon": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.max_position_embeddings if config.is_decoder else None,
        "pre_layernorm": False,
        "post_layernorm": True,
    }


def no_relative_positions(kind: str) -> None:
    """Raises CannotDistribute."""
    from ...tp.registry import CannotDistribute

    raise CannotDistribute(f"its position embedding is {kind!r}, supported is 'absolute'")


LAYER_NAMES = (
    (("attention.query",), "attention.self.query", SAME),
    (("attention.key",), "attention.self.key", SAME),
    (("attention.value",), "attention.self.value", SAME),
    (("attention.dense",), "attention.output.dense", SAME),
    (("attention.layernorm",), "attention.output.LayerNorm", SAME),
    (("output.dense1",), "intermediate.dense", SAME),
    (("output.dense2",), "output.dense", SAME),
    (("output.layernorm",), "output.LayerNorm", SAME),
)
NAMES = Names("encoder.seq_layers", "encoder.layer", LAYER_NAMES)
FAMILY = Family("transformers.models.bert.modeling_bert", "BertLayer", layer_options, encoder="BertEncoder")


def get_hf_bert_transformer_layer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register BertLayer with DistributedTransformerLayer."""
    return layer_hooks(FAMILY)


def get_hf_bert_transformer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register BertEncoder with DistributedTransformer."""
    return encoder_hooks(FAMILY)


def translate_state_dict_to_hf_bert(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A full state_dict of a BERT with a distributed encoder as one of the plain model. max_seq_len: of no effect."""
    del max_seq_len
    return NAMES.to_theirs(state_dict)


def translate_hf_state_dict_to_smdistributed_bert(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A state_dict of a plain BERT as one that the model with a distributed encoder loads."""
    del max_seq_len
    return NAMES.to_ours(state_dict)


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_bert
translate_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_bert
