"""Models of transformers from their configurations, small, with placements that nest and cross."""

from __future__ import annotations

import functools
from typing import Any

import torch
from numerics import Batch, Case
from torch import nn

TOKENS, LENGTH = 60, 12


def build(kind: str) -> nn.Module:
    """The model of that kind; dropout is off, for each rank draws its own."""
    import transformers

    torch.manual_seed(0)
    size = {"vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    if kind == "gpt2":
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        shape = {"vocab_size": TOKENS, "n_positions": 32, "n_embd": 32, "n_layer": 3, "n_head": 2}
        model: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **off))
    elif kind == "bert":
        off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**size, intermediate_size=64, **off))
    elif kind == "llama":
        groups = {"num_key_value_heads": 1, "use_cache": False}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, intermediate_size=64, **groups))
    else:
        shape = {"vocab_size": TOKENS, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
        off = {"dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0, "pad_token_id": 0}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, **off))
    return model.train()


def batch(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(1, TOKENS, (16, 1), generator=generator)
    tokens = (starts + 3 * torch.arange(LENGTH)) % (TOKENS - 1) + 1
    return {"input_ids": tokens, "labels": tokens}


def own_loss(output: Any, _batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = output["loss"]
    return loss


# By kind: a block on rank 1 whose attention is back on rank 0, and more. The last lines of T5 bring back what is tied.
PLACEMENTS = {
    "gpt2": {"transformer.h.1": 1, "transformer.h.1.attn": 0, "transformer.h.2.mlp": 1, "transformer.ln_f": 1},
    "bert": {"bert.encoder.layer.1": 1, "bert.encoder.layer.1.attention.self": 0, "cls.predictions.transform": 1},
    "llama": {"model.layers.1": 1, "model.layers.1.self_attn": 0, "model.layers.2.mlp": 1, "lm_head": 1},
    "t5": {"decoder": 1, "decoder.block.0": 0, "encoder.block.1": 1, "decoder.embed_tokens": 0},
}
CASES = {
    kind: Case(functools.partial(build, kind), batch, own_loss, placement, lr=0.02)
    for kind, placement in PLACEMENTS.items()
}
