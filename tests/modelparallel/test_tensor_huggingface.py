"""Models of Hugging Face, distributed by one context, against the plain ones: logits, losses, gradients, state_dicts.

With the environment's transformers, and with the last release that knows smp.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from tensor_oracle import averaged_full_gradient, start
from torch import nn

pytest.importorskip("transformers")

GPT = {"vocab_size": 19, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 4}
GPT_OFF = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "use_cache": False}
BERT = {"vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BERT_OFF = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "max_position_embeddings": 16}
NEO = {"vocab_size": 19, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 12}
T5 = {"vocab_size": 20, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "use_cache": False}
VIT = {**BERT, "image_size": 8, "patch_size": 4, "num_labels": 4}
NEOX = {**BERT, "max_position_embeddings": 12, "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_cache": False}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {**GPT, **GPT_OFF}),
    # Older releases scale by layer in this implementation only.
    "gpt2 by layer": (
        "GPT2LMHeadModel",
        {**GPT, **GPT_OFF, "scale_attn_by_inverse_layer_idx": True, "attn_implementation": "eager"},
    ),
    "gpt2 with its states": ("GPT2LMHeadModel", {**GPT, **GPT_OFF, "output_hidden_states": True}),
    "gptj": ("GPTJForCausalLM", {**GPT, **GPT_OFF, "rotary_dim": 2}),
    "gptneo": (
        "GPTNeoForCausalLM",
        {
            **NEO,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 2,
            "use_cache": False,
            "attention_dropout": 0.0,
            "embed_dropout": 0.0,
            "resid_dropout": 0.0,
        },
    ),
    "gptneox": ("GPTNeoXForCausalLM", {**NEOX, "rotary_pct": 0.5}),
    "gptneox-in-sequence": ("GPTNeoXForCausalLM", {**NEOX, "rotary_pct": 0.5, "use_parallel_residual": False}),
    "bert": ("BertForMaskedLM", {**BERT, **BERT_OFF}),
    "roberta": ("RobertaForMaskedLM", {**BERT, **BERT_OFF, "pad_token_id": 1}),
    "vit": ("ViTForImageClassification", {**VIT, **BERT_OFF, "qkv_bias": False}),
    "t5": ("T5ForConditionalGeneration", {**T5, "dropout_rate": 0.0, "decoder_start_token_id": 0}),
}
# The module that stands for a model, or for each of its layers.
KINDS = {"vit": ["DistributedTransformer", "DistributedTransformerLayer"], "t5": ["DistributedLinear"]}


def build(name: str) -> Any:
    import transformers

    cls = getattr(transformers, MODELS[name][0])
    model = cls(cls.config_class(**MODELS[name][1]))
    # Weights of zero and one hide mistakes.
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=g, dtype=parameter.dtype) * 0.1)
    return model


def distributed(degree: int, config: dict[str, Any], names: list[str], packages: str | None) -> dict[str, Any]:
    if packages is not None:
        sys.path.insert(0, packages)
    smp = start(degree, **config)
    torch.set_default_dtype(torch.float64)
    found = {}
    for name in names:
        smp.state.module_manager.translate_functions.clear()
        torch.manual_seed(0)
        plain = build(name)
        with smp.tensor_parallelism():
            model = build(name)
        if name == "gpt2 by layer":
            smp.set_tensor_parallelism(model, False)
            smp.set_tensor_parallelism(model.transformer.h, True)
        model = smp.tp.distribute(model)
        found[name] = compared(smp, plain, model)
    return found


def compared(smp: Any, plain: nn.Module, model: nn.Module) -> dict[str, Any]:
    to_theirs, to_ours = (smp.state.module_manager.translate_functions or [(dict, dict)])[0]
    # What the library takes from the model given to smp.DistributedModel, of which there is one a script.
    if type(plain).__name__ == "GPTNeoXForCausalLM":
        heads = {"num_attention_heads": plain.config.num_attention_heads}
        to_theirs, to_ours = (lambda state, f=f: f(state, **heads) for f in (to_theirs, to_ours))
    model.load_state_dict(to_ours(plain.state_dict()))
    back = to_theirs(smp.tp.gather_full(model, model.state_dict()))
    same = {key: torch.equal(value, back[key]) for key, value in plain.state_dict().items() if key in back}

    batches = [batch(plain, rank) for rank in range(smp.tp_size())]
    found = [plain(**one) for one in batches]
    sum(one.loss for one in found).div(len(found)).backward()
    own, wanted = batches[smp.tp_rank()], found[smp.tp_rank()]
    output = model(**own)
    output["loss"].backward()
    seen = own["attention_mask"].bool() if "attention_mask" in own else slice(None)
    gradients = to_theirs(
        {
            key: averaged_full_gradient(p)
            for key, p in model.named_parameters(remove_duplicate=False)
            if p.grad is not None
        }
    )
    errors = {
        key: float((gradients[key] - p.grad).abs().max()) for key, p in plain.named_parameters() if p.grad is not None
    }
    return {
        "kinds": {type(one).__name__ for one in model.modules()},
        "tuple": type(model(**own, return_dict=False)),
        "keys": set(back) == set(plain.state_dict()) and all(same.values()),
        "loss": float((output.loss - wanted.loss).detach().abs()),
        "logits": float((output.logits - wanted.logits)[seen].detach().abs().max()),
        "gradients": max(errors.values()),
        "count": len(errors),
    }


def batch(plain: Any, rank: int) -> dict[str, torch.Tensor]:
    """Two samples of tokens, the first of rank 0 being shorter; or of images."""
    g = torch.Generator().manual_seed(9 + rank)
    if type(plain).__name__.startswith("ViT"):
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=g), "labels": torch.tensor([rank, 3])}
    ids = torch.randint(2, 19, (2, 7), generator=g)
    mask = torch.ones_like(ids)
    if rank == 0:
        mask[0, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@pytest.mark.parametrize(
    ("degree", "optimize", "older"),
    [(1, "memory", False), (2, "speed", False), (2, "memory", False), (2, "memory", True)],
)
def test_distributed_models_of_hugging_face_compute_as_plain_ones(
    request: pytest.FixtureRequest, degree: int, optimize: str, older: bool
) -> None:
    """Statements 36 and 37 for GPT-2, GPT-J, GPT-Neo, GPT-NeoX, BERT, RoBERTa, ViT and T5; their weights go there and
    back.

    With degree 1 too: clients use the distributed transformer also where nothing is split.
    """
    folder: Path | None = request.getfixturevalue("packages") if older else None
    where = None if folder is None else str(folder)
    for rank in run_ranks(distributed, degree, degree, {"optimize": optimize}, list(MODELS), where, limit=240):
        for name, report in rank.report.items():
            kind = name.split()[0]
            default = [f"DistributedTransformer{'' if 'bert' in kind else 'LMHead'}"]
            wanted = KINDS.get(kind, default) if name == kind else ["DistributedTransformerLayer"]
            assert any(one in report["kinds"] for one in wanted), (name, report)
            assert report["keys"], name
            assert report["tuple"] is tuple, name
            assert report["count"] > 20, name
            # Losses, tables of angles, and the scores of GPT-Neo are float32 in these models.
            assert report["loss"] < 1e-6, (name, report)
            assert report["logits"] < 1e-6, (name, report)
            assert report["gradients"] < 1e-6, (name, report)
