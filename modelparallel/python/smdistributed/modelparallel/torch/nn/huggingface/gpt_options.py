"""What GPT-2 and GPT-J have in common: their configurations use the same names."""

from __future__ import annotations

from typing import Any

from .hooks import activation


def layer_options(config: Any) -> dict[str, Any]:
    """Constructor arguments of a block: causal, normalized before its sublayers."""
    return {
        "num_attention_heads": config.n_head,
        "attention_head_size": config.n_embd // config.n_head,
        "hidden_size": config.n_embd,
        "intermediate_size": 4 * config.n_embd if config.n_inner is None else config.n_inner,
        "attention_dropout_prob": config.attn_pdrop,
        "hidden_dropout_prob": config.resid_pdrop,
        "activation": activation(config.activation_function),
        "layernorm_epsilon": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.n_positions,
        "pre_layernorm": True,
        "post_layernorm": False,
        "add_residual": True,
    }


def model_options(config: Any) -> dict[str, Any]:
    """Constructor arguments of the language model beside those of its blocks."""
    return {
        "num_layers": config.n_layer,
        "vocab_size": config.vocab_size,
        "embedding_dropout_prob": config.embd_pdrop,
        "tie_input_output_embedding": config.tie_word_embeddings,
        "final_layernorm": True,
    }
