"""smp.nn's transformer modules against plain ones written from the documentation: weights, outputs, every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from tensor_oracle import compare, start
from tensor_reference import Attention, Layer, LMHead, Output, Transformer

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "attention_head_size": 4, "intermediate_size": 24}
NO_DROPOUT = {"attention_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
LENGTH, OTHER = 6, 5


def hidden(g: torch.Generator, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(2, length, 16, generator=g, requires_grad=True)


def mask(g: torch.Generator, length: int = LENGTH) -> torch.Tensor:
    return (torch.rand(2, 1, 1, length, generator=g) < 0.3).to(torch.get_default_dtype()) * -1e4


def parts(degree: int, config: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """All modules in one job: a rank takes longer to start than to run them."""
    smp = start(degree, **config)
    torch.set_default_dtype(dtype)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-4}
    found: dict[str, Any] = {}
    for pre, post in [(False, True), (True, False), (True, True)]:
        norms = {"pre_layernorm": pre, "post_layernorm": post}
        plain = {"pre": pre, "post": post}
        attention = {"hidden_size": 16, "num_attention_heads": 4, "attention_head_size": 4, **NO_DROPOUT, **norms}
        for cross, causal in [(False, False), (False, True), (True, False)]:
            found[f"attention {pre} {post} {cross}"] = compare(
                lambda cross=cross, causal=causal, plain=plain: Attention(
                    16, 4, 4, cross=cross, causal=causal, **plain
                ),
                lambda cross=cross, causal=causal, attention=attention: smp.nn.DistributedAttentionLayer(
                    cross_attention=cross, causal_mask_size=LENGTH if causal else None, **attention
                ),
                lambda g, cross=cross: (
                    ((hidden(g), hidden(g, OTHER), mask(g, OTHER)),) if cross else ((hidden(g), mask(g)),)
                ),
                **tolerance,
            )
        for activation in ("gelu", "relu"):
            found[f"output {pre} {post}"] = compare(
                lambda activation=activation, plain=plain: Output(16, 24, activation=activation, **plain),
                lambda activation=activation, norms=norms: smp.nn.DistributedTransformerOutputLayer(
                    16, 24, 0.0, activation, **norms
                ),
                lambda g: (hidden(g),),
                **tolerance,
            )
        for cross in (False, True):
            options = {"activation": "gelu", "cross": cross, "causal": True, **plain}
            sample = (
                (lambda g: ((hidden(g), hidden(g, OTHER), mask(g), mask(g, OTHER)),))
                if cross
                else (lambda g: ((hidden(g), mask(g)),))
            )
            ours = {"causal_mask_size": LENGTH, "add_cross_attention": cross, **SIZES, **NO_DROPOUT, **norms}
            compare(
                lambda options=options: Layer(SIZES, **options),
                lambda ours=ours: smp.nn.DistributedTransformerLayer(**ours),
                sample,
                **tolerance,
            )
            found[f"transformer {pre} {post} {cross}"] = compare(
                lambda options=options: Transformer(2, SIZES, **options),
                lambda ours=ours: smp.nn.DistributedTransformer(2, **ours),
                sample,
                **tolerance,
            )
    return found


@pytest.mark.parametrize("optimize", ["speed", "memory"])
@pytest.mark.parametrize(
    ("degree", "ranks", "prescaled", "dtype"),
    [
        (1, 1, False, torch.float64),
        (2, 2, False, torch.float64),
        (2, 2, False, torch.float32),
        (4, 4, False, torch.float64),
        (2, 4, True, torch.float64),
    ],
)
def test_transformer_modules_equal_the_documented_reference(
    degree: int, ranks: int, prescaled: bool, dtype: torch.dtype, optimize: str
) -> None:
    """Statements 36 to 38 for every transformer module, in both layouts: the numbers are the reference's."""
    config = {"prescaled_batch": prescaled, "optimize": optimize}
    for rank in run_ranks(parts, ranks, degree, config, dtype, limit=280):
        shapes = rank.report["attention False True False"]
        assert shapes["query.weight"] == ((16 // degree, 16), 0)
        assert shapes["dense.weight"] == ((16, 16 // degree), 1)
        assert shapes["dense.bias"] == ((16,), None)
        assert rank.report["output True False"]["dense1.bias"] == ((24 // degree,), 0)
        assert len(rank.report["transformer True False True"]) == 2 * 26


def language_model(degree: int, config: dict[str, Any], cross: bool = False) -> dict[str, Any]:
    smp = start(degree, **config)
    torch.set_default_dtype(torch.float64)

    def sample(g: torch.Generator) -> tuple[Any]:
        ids = torch.randint(0, 11, (2, LENGTH), generator=g)
        masked = torch.zeros(2, LENGTH, dtype=torch.long)
        others = torch.zeros(2, OTHER)
        others[1, 0] = 1
        masked[0, -1] = 1
        types = torch.randint(0, 3, (2, LENGTH), generator=g)
        labels = ids.clone()
        labels[1, 2] = -100
        between = (hidden(g, OTHER), others) if cross else ()
        return ((ids, masked, types, None, *between, labels),)

    options = {"activation": "gelu", "cross": cross, "causal": True, "pre": False, "post": True}
    return compare(
        lambda: LMHead(11, 8, 3, 2, SIZES, **options),
        lambda: smp.nn.DistributedTransformerLMHead(
            num_layers=2,
            vocab_size=11,
            num_positions=8,
            num_token_types=3,
            causal_mask_size=8,
            add_cross_attention=cross,
            **SIZES,
            **NO_DROPOUT,
        ),
        sample,
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("optimize", ["speed", "memory"])
@pytest.mark.parametrize(
    ("degree", "ranks", "prescaled", "cross"), [(2, 2, False, False), (2, 2, False, True), (2, 4, True, False)]
)
def test_lm_head_equals_a_plain_language_model(
    degree: int, ranks: int, prescaled: bool, cross: bool, optimize: str
) -> None:
    """Statements 36 to 38 for embeddings, layers and the tied head together; loss and logits are of the rank's own
    batch."""
    for rank in run_ranks(language_model, ranks, degree, {"prescaled_batch": prescaled, "optimize": optimize}, cross):
        assert rank.report["word_embedding.weight"] == ((11, 16 // degree), 1)
        assert "lm_head.weight" not in rank.report
