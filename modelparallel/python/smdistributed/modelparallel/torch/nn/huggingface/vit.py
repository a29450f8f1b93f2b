"""ViT: its layers, and in older releases of transformers its encoder, as distributed modules, and its state_dicts."""

from __future__ import annotations

from typing import Any

from .hooks import Family, Hooks, activation, encoder_hooks, layer_hooks
from .keys import SAME, Names, StateDict


def _layer(config: Any) -> dict[str, Any]:
    heads = config.num_attention_heads
    return {
        "num_attention_heads": heads,
        "attention_head_size": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_dropout_prob": config.attention_probs_dropout_prob,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "activation": activation(config.hidden_act),
        "layernorm_epsilon": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": None,
        "pre_layernorm": True,
        "post_layernorm": False,
        "add_residual": True,
        "use_qkv_bias": config.qkv_bias,
    }


# Of releases before 5 of transformers, which have an encoder.
NAMES = Names(
    "encoder.seq_layers",
    "encoder.layer",
    (
        (("attention.pre_layernorm",), "layernorm_before", SAME),
        (("attention.query",), "attention.attention.query", SAME),
        (("attention.key",), "attention.attention.key", SAME),
        (("attention.value",), "attention.attention.value", SAME),
        (("attention.dense",), "attention.output.dense", SAME),
        (("output.pre_layernorm",), "layernorm_after", SAME),
        (("output.dense1",), "intermediate.dense", SAME),
        (("output.dense2",), "output.dense", SAME),
    ),
)
_NEWER = Names(
    "layers",
    "layers",
    (
        (("attention.pre_layernorm",), "layernorm_before", SAME),
        (("attention.query",), "attention.q_proj", SAME),
        (("attention.key",), "attention.k_proj", SAME),
        (("attention.value",), "attention.v_proj", SAME),
        (("attention.dense",), "attention.o_proj", SAME),
        (("output.pre_layernorm",), "layernorm_after", SAME),
        (("output.dense1",), "mlp.fc1", SAME),
        (("output.dense2",), "mlp.fc2", SAME),
    ),
)
FAMILY = Family("transformers.models.vit.modeling_vit", "ViTLayer", _layer, encoder="ViTEncoder")


def get_hf_vit_transformer_layer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register ViTLayer with DistributedTransformerLayer."""
    return layer_hooks(FAMILY)


def get_hf_vit_transformer_hooks() -> Hooks:
    """(init_hook, forward_hook, return_hook) to register ViTEncoder with DistributedTransformer."""
    return encoder_hooks(FAMILY)


def translate_state_dict_to_hf_vit(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A full state_dict of a ViT with distributed layers as one of the plain model. max_seq_len: of no effect."""
    del max_seq_len
    return names_of_installed().to_theirs(state_dict)


def translate_hf_state_dict_to_smdistributed_vit(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """A state_dict of a plain ViT as one that the model with distributed layers loads."""
    del max_seq_len
    return names_of_installed().to_ours(state_dict)


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_vit


def names_of_installed() -> Names:
    """Where the installed release of transformers has the layers, and what is in them."""
    return NAMES if FAMILY.has("ViTEncoder") else _NEWER
