"""Options of smp.nn's transformer modules: kernels, precision, dropout, ALiBi, delayed parameters, T5."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from tensor_oracle import compare, start
from tensor_reference import Attention
from torch import Tensor, nn

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "attention_head_size": 4}
OFF = {"attention_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}


def slopes_of(heads: int) -> list[float]:
    from smdistributed.modelparallel.torch.nn.scores import alibi_slopes

    return [round(math.log2(one), 6) for one in alibi_slopes(heads).tolist()]


def test_alibi_slopes_are_those_of_the_paper() -> None:
    assert slopes_of(8) == [-1, -2, -3, -4, -5, -6, -7, -8]
    assert slopes_of(12) == [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]


@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_flash_attention_layer_equals_attention_element_by_element(alibi: bool, causal: bool, masked: bool) -> None:
    import smdistributed.modelparallel.torch as smp

    torch.manual_seed(0)
    qkv = torch.randn(2, 5, 3, 4, 8, dtype=torch.float64)
    mask = torch.randn(2, 1, 1, 5, dtype=torch.float64) if masked else None
    layer = smp.nn.FlashAttentionLayer(
        0.0, attention_head_size=8, scale_attn_by_layer_idx=True, layer_idx=1, use_alibi=alibi
    )
    found = layer(qkv, mask, causal)
    for b in range(2):
        for h in range(4):
            for i in range(5):
                seen = range(i + 1) if causal else range(5)
                scores = torch.stack(
                    [
                        qkv[b, i, 0, h] @ qkv[b, j, 1, h] / math.sqrt(8) / 2
                        + (0 if mask is None else mask[b, 0, 0, j])
                        - (2.0 ** (-2 * (h + 1)) * abs(i - j) if alibi else 0)
                        for j in seen
                    ]
                )
                wanted = sum(p * qkv[b, j, 2, h] for p, j in zip(torch.softmax(scores, 0), seen, strict=True))
                torch.testing.assert_close(found[b, h, i], wanted, rtol=1e-6, atol=1e-6)


def test_flash_attention_layer_refuses_another_shape() -> None:
    import smdistributed.modelparallel.torch as smp

    with pytest.raises(ValueError, match=r"qkv has shape \(2, 3, 4\): it must be \[B, S, 3, H, D\]"):
        smp.nn.FlashAttentionLayer()(torch.zeros(2, 3, 4))


class Biased(torch.nn.Module):
    """The reference attention with the ALiBi bias in its mask."""

    def __init__(self) -> None:
        super().__init__()
        inner = Attention(16, 4, 4, pre=False, post=True, causal=True)
        self.query, self.key, self.value, self.dense = inner.query, inner.key, inner.value, inner.dense
        self.layernorm = inner.layernorm
        self.__dict__["inner"] = inner

    def forward(self, inputs: Any) -> Tensor:
        hidden, mask = inputs
        places = torch.arange(hidden.shape[1])
        distance = (places[:, None] - places[None, :]).abs()
        slopes = 2.0 ** (-2.0 * torch.arange(1, 5))
        found: Tensor = self.__dict__["inner"]((hidden, mask - slopes[:, None, None] * distance))
        return found


def variants() -> list[int]:
    """Each option that chooses a kernel leaves the numbers as they are; ALiBi's slopes are those of a rank's own
    heads."""
    smp = start(2)
    torch.set_default_dtype(torch.float64)

    def sample(g: torch.Generator) -> tuple[Any]:
        hidden = torch.randn(2, 6, 16, generator=g, requires_grad=True)
        return ((hidden, torch.randn(2, 1, 1, 6, generator=g)),)

    options: list[dict[str, Any]] = [
        {"fused_softmax": False},
        {"attention_in_fp32": True},
        {"query_key_layer_scaling": True, "layer_idx": 3},
        {"flash_attention": False, "fused_dropout": True, "fused_bias_gelu": True},
        {"fp32_residual_addition": True},
    ]
    for one in options:
        compare(
            lambda: Attention(16, 4, 4, pre=False, post=True, causal=True),
            lambda one=one: smp.nn.DistributedAttentionLayer(causal_mask_size=6, **SIZES, **OFF, **one),
            sample,
        )
    compare(
        Biased,
        lambda: smp.nn.DistributedAttentionLayer(causal_mask_size=6, use_alibi=True, **SIZES, **OFF),
        sample,
        rtol=1e-6,
        atol=1e-6,
    )
    return [len(options)]


def test_kernel_options_leave_the_numbers_as_they_are() -> None:
    assert [rank.report for rank in run_ranks(variants, 2)] == [[5]] * 2


def dropped(optimize: str, prescaled: bool) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.utils.checkpoint import checkpoint

    smp = start(2, optimize=optimize, prescaled_batch=prescaled)
    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 64}
    layer = smp.nn.DistributedTransformerLayer(attention_dropout_prob=0.5, hidden_dropout_prob=0.5, **sizes)
    x = torch.randn(4, 6, 64, generator=torch.Generator().manual_seed(0 if prescaled else smp.tp_rank()))

    def run(recompute: bool) -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(20 + smp.tp_rank())
        layer.zero_grad()
        inputs = (x.clone().requires_grad_(), None)
        output = checkpoint(layer, inputs, use_reentrant=False)[0] if recompute else layer(inputs)[0]
        output.pow(2).sum().backward()
        return output.detach(), {name: p.grad.clone() for name, p in layer.named_parameters()}

    output, gradients = run(False)
    again, recomputed = run(True)
    whole = {}
    for name, p in layer.named_parameters():
        if not smp.tp.is_distributed(p):
            both = [torch.empty_like(p) for _ in range(2)]
            dist.all_gather(both, gradients[name], group=smp.get_tp_process_group())
            whole[name] = torch.allclose(both[0], both[1], rtol=1e-4, atol=1e-5)
    torch.manual_seed(20 + smp.tp_rank())
    other = layer.eval()((x, None))[0]
    return {
        "recomputed": torch.equal(output, again) and all(torch.equal(gradients[n], recomputed[n]) for n in gradients),
        "agreed": all(whole.values()) and len(whole) == 6,
        "dropped": not torch.allclose(output, other),
    }


@pytest.mark.parametrize("optimize", ["speed", "memory"])
@pytest.mark.parametrize("prescaled", [False, True])
def test_dropout_agrees_between_ranks_and_is_repeated_by_recomputation(optimize: str, prescaled: bool) -> None:
    """Ranks that seed themselves differently drop the same elements of what they hold twice; checkpointing replays
    it."""
    for rank in run_ranks(dropped, 2, optimize, prescaled):
        assert rank.report == {"recomputed": True, "agreed": True, "dropped": True}


def halves() -> dict[bool, Any]:
    smp = start(2)
    torch.set_default_dtype(torch.float16)
    found = {}
    for wide in (False, True):
        torch.manual_seed(0)
        layer = smp.nn.DistributedTransformerOutputLayer(
            16, 16, 0.0, pre_layernorm=True, fp32_residual_addition=wide, post_layernorm=False, add_residual=True
        )
        with torch.no_grad():
            layer.dense2.bias.fill_(4e4)
        output = layer(torch.full((2, 3, 16), 4e4))
        found[wide] = (output.dtype, bool(torch.isfinite(output).all()), layer.dense1.weight.dtype)
    return found


def test_residual_addition_in_float32_does_not_overflow() -> None:
    for rank in run_ranks(halves, 2):
        assert rank.report[False] == (torch.float16, False, torch.float16)
        assert rank.report[True] == (torch.float32, True, torch.float16)


def mixed(optimize: str) -> list[float]:
    """Under autocast, in both layouts: close to the plain layer under autocast, and gradients of the weights' type."""
    from tensor_reference import Layer

    smp = start(2, optimize=optimize)
    sizes = {**SIZES, "intermediate_size": 24}
    torch.manual_seed(2)
    plain = Layer(sizes, activation="gelu", cross=False, pre=True, post=True, causal=True)
    torch.manual_seed(2)
    layer = smp.nn.DistributedTransformerLayer(
        causal_mask_size=6, pre_layernorm=True, post_layernorm=True, **sizes, **OFF
    )
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(smp.tp_rank()))
    with torch.autocast("cpu", torch.bfloat16):
        wanted, found = plain((x, None))[0], layer((x, None))[0]
    found.float().pow(2).sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())
    return [float((found - wanted).detach().abs().max()), float(wanted.detach().abs().max())]


@pytest.mark.parametrize("optimize", ["speed", "memory"])
def test_layers_run_under_autocast(optimize: str) -> None:
    for rank in run_ranks(mixed, 2, optimize):
        error, size = rank.report
        assert error < 0.02 * size


def test_modules_need_smp_init() -> None:
    import smdistributed.modelparallel.torch as smp

    with pytest.raises(RuntimeError, match=r"call smp.init\(\)"):
        smp.nn.DistributedLinear(4, 4)


def delayed(late: bool) -> dict[str, Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    smp = start(2, delayed_parameter_initialization=late)
    config = GPT2Config(vocab_size=19, n_positions=12, n_embd=16, n_layer=2, n_head=4)
    torch.manual_seed(1)
    with smp.model_creation(tensor_parallelism=True, dtype=torch.bfloat16):
        model = GPT2LMHeadModel(config)
    assert late == any(p.is_meta for p in model.parameters())
    # As clients do, before the model is distributed.
    torch.manual_seed(40 + smp.tp_rank())
    model = smp.DistributedModel(model)
    assert type(model.get_module()).__name__ == "DistributedTransformerLMHead"
    assert model.get_module().transformer.seq_layers[1].output.dense2.weight.shape == (16, 32)
    return {key: value.clone() for key, value in model.state_dict().items()}


def test_delayed_distributed_parameters_are_the_same_as_eager_ones() -> None:
    """Statement 36 for smp.model_creation: weights are drawn once, of its type, agreed by all ranks, delayed or not."""
    pytest.importorskip("transformers")
    eager, late = (run_ranks(delayed, 2, how) for how in (False, True))
    first = eager[0].report
    assert first["word_embedding.weight"].dtype == torch.bfloat16
    assert first["transformer.seq_layers.0.attention.query.weight"].shape == (16, 16)
    for rank in [*eager, *late]:
        assert rank.report.keys() == first.keys()
        for key, value in first.items():
            assert torch.equal(rank.report[key], value), key


def by_parts() -> dict[str, Any]:
    """T5: its linear maps and embeddings are distributed, whatever lies between them stays."""
    from transformers import T5Config, T5ForConditionalGeneration

    smp = start(2)
    torch.set_default_dtype(torch.float64)
    config = T5Config(
        vocab_size=20,
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
        tie_word_embeddings=False,
    )
    plain = T5ForConditionalGeneration(config)
    with smp.tensor_parallelism():
        model = T5ForConditionalGeneration(config)
    model = smp.tp.distribute(model)
    t5 = smp.nn.huggingface.t5
    model.load_state_dict(t5.translate_hf_state_dict_to_smdistributed_t5(plain.state_dict()))
    ids = torch.randint(1, 20, (4, 6), generator=torch.Generator().manual_seed(3))
    own = ids[2 * smp.tp_rank() :][:2]
    wanted, found = (one(input_ids=own, labels=own) for one in (plain, model))
    kinds = [type(one).__name__ for one in model.modules()]
    return {
        "error": float((found.logits - wanted.logits).detach().abs().max()),
        "split": kinds.count("DistributedLinear"),
        "left": [name for name, one in model.named_modules() if type(one).__name__ == "Linear"],
        "tied": plain.lm_head.weight is plain.shared.weight,
    }


def test_t5_is_distributed_by_its_linear_maps() -> None:
    pytest.importorskip("transformers")
    for rank in run_ranks(by_parts, 2):
        assert rank.report["error"] < 1e-9
        assert rank.report["split"] > 20
        # The head stays where it shares its weight with the embedding (this depends on the release of transformers).
        assert rank.report["left"] == (["lm_head"] if rank.report["tied"] else [])


def in_half() -> dict[str, torch.dtype]:
    smp = start(1, fp16_params=True)
    with smp.tensor_parallelism():
        split = nn.Linear(4, 4)
    model = smp.DistributedModel(nn.Sequential(split, nn.Linear(4, 4)))
    return {name: one.dtype for name, one in model.get_module().named_parameters()}


def test_fp16_params_makes_distributed_modules_in_float16() -> None:
    (rank,) = run_ranks(in_half, 1)
    half, full = torch.float16, torch.float32
    assert rank.report == {"0.weight": half, "0.bias": half, "1.weight": full, "1.bias": full}
