"""Calls of smp's public API with a value that does not belong: for each argument all values of other kinds.

`KINDS` says what an argument may be; `calls(smp, folder)` gives (name of the call, value, call) for every argument of
every function of `smp` and every value that is not of its kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

NAN = float("nan")
VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "7": 7,
    "0.5": 0.5,
    "-2.5": -2.5,
    "nan": NAN,
    "text": "text",
    "empty text": "",
    "bytes": b"bytes",
    "list": [],
    "list of text": ["x"],
    "list of numbers": [3],
    "dictionary": {"x": "y"},
    "tensor": torch.zeros(2, 2),
    "class": nn.Linear,
    "object": object(),
    "function": print,
}
_NUMBERS = {"True", "-1", "0", "7", "0.5", "-2.5", "nan"}
# The values that an argument of a kind may have; a default of None is said with "?".
KINDS: dict[str, set[str]] = {
    "flag": {"True", "0"},
    "count": {"7"},
    "index": {"0"},
    "number": {"7", "0.5"},
    "rate": {"7", "0.5", "0"},
    "share": {"0.5", "0"},
    "beta": set(),
    "path": {"text", "bytes"} - {"bytes"},
    "name": {"text"},
    "word": set(),
    "module": set(),
    "model": {"None"},
    "optimizer": {"None"},
    "group": set(),
    "function": {"function", "class"},
    "class": {"class"},
    "dtype": {"None"},
    "names": {"list", "list of text", "None"},
    "axes": {"None"},
    "tensors": {"tensor", "list"},
    "outputs": set(),
    "parameters": {"tensor"},
    "dictionary": {"dictionary"},
    "config": {"None"},
    "anything": set(VALUES),
}


class Call(NamedTuple):
    """One function: right arguments for all of its parameters, and their kinds; "?": may be None."""

    name: str
    function: Callable[..., Any]
    right: dict[str, Any]
    kinds: dict[str, str]


def wrong(kind: str) -> Iterator[tuple[str, Any]]:
    """The values that are not of this kind."""
    optional = kind.endswith("?")
    for name, value in VALUES.items():
        if name not in KINDS[kind.rstrip("?")] and not (optional and name == "None"):
            yield name, value


def calls(smp: Any, folder: Path, model: Any, optimizer: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(call, name of the value, the call) for each value that is wrong."""
    for call in [*_training(smp, model, optimizer), *_files(smp, folder, model), *_rest(smp), *_modules(smp)]:
        for parameter, kind in call.kinds.items():
            for label, value in wrong(kind):
                arguments = {**call.right, parameter: value}
                yield f"{call.name}({parameter}=)", label, functools.partial(call.function, **arguments)


def _enter(context: Callable[..., Any]) -> Callable[..., None]:
    """Calls a context manager and enters it: some look at their arguments only then."""

    def entered(**arguments: Any) -> None:
        with context(**arguments):
            pass

    return entered


def _training(smp: Any, model: Any, optimizer: Any) -> Iterator[Call]:
    flags = [
        "trace_execution_times",
        "overlapping_allreduce",
        "average_grads_across_microbatches",
        "trace_memory_usage",
        "broadcast_buffers",
        "gradient_as_bucket_view",
        "find_unused_parameters",
    ]
    kinds = {"module": "module", "trace_device": "word", "backward_passes_per_step": "count", "bucket_cap_mb": "number"}
    module = {"module": nn.Linear(2, 2)}
    yield Call("smp.DistributedModel", smp.DistributedModel, module, {**kinds, **dict.fromkeys(flags, "flag")})
    kinds = {"optimizer": "module", "static_loss_scale": "number?", "dynamic_loss_scale": "flag"}
    kinds |= dict.fromkeys(["init_scale", "scale_factor", "min_scale"], "number")
    kinds |= {"scale_window": "count", "delayed_shift": "count", "consecutive_hysteresis": "flag"}
    plain = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    yield Call("smp.DistributedOptimizer", smp.DistributedOptimizer, {"optimizer": plain}, kinds)
    kinds = {"function": "function?", "non_split_inputs": "names", "input_split_axes": "axes", "detach_outputs": "flag"}
    yield Call("smp.step", smp.step, {"function": lambda x: x}, kinds)
    yield Call("smp.StepOutput", smp.StepOutput, {}, {"outputs": "outputs"})
    kinds = {"parameters": "tensors", "max_norm": "number", "norm_type": "number", "error_if_nonfinite": "flag"}
    yield Call("smp.clip_grad_norm_", smp.clip_grad_norm_, {"parameters": [], "max_norm": 1.0}, kinds)
    yield Call("smp.init", smp.init, {}, {"config": "config"})
    # Outside of a step, where the place is what is wrong.
    yield Call("model.backward", model.backward, {}, {"tensors": "word"})
    for name in ("register_post_partition_hook", "register_post_step_hook"):
        yield Call(f"model.{name}", getattr(model, name), {}, {"hook": "function"})
    state = {"state_dict": model.state_dict()}
    kinds = {"state_dict": "dictionary", "strict": "flag", "same_partition_load": "flag"}
    yield Call("model.load_state_dict", model.load_state_dict, state, kinds)
    yield Call("model.state_dict", model.state_dict, {}, {"gather_to_rank0": "flag"})
    yield Call("model.join", model.join, {}, {"divide_by_initial_world_size": "flag"})
    hook = {"hook_state": None, "hook": print}
    yield Call("model.register_comm_hook", model.register_comm_hook, hook, {"hook": "function"})
    yield Call("model.owner_of", model.owner_of, {}, {"name": "empty name"})
    yield Call("optimizer.load_state_dict", optimizer.load_state_dict, {}, {"state_dict": "word"})


KINDS["empty name"] = {"empty text"}


def _files(smp: Any, folder: Path, model: Any) -> Iterator[Call]:
    right: dict[str, Any] = {"obj": 1, "f": str(folder / "file")}
    yield Call("smp.save", smp.save, right, {"f": "path", "partial": "flag", "v3": "flag"})
    kinds = {"f": "path", "partial": "flag", "back_compat": "flag"}
    yield Call("smp.load", smp.load, {"f": str(folder / "file")}, kinds)
    right = {"path": str(folder), "tag": "tag", "model": model}
    kinds = {"path": "path", "tag": "name", "partial": "flag", "model": "model", "optimizer": "optimizer"}
    kinds |= {"translate_if_full": "flag", "num_kept_partial_checkpoints": "count?"}
    yield Call("smp.save_checkpoint", smp.save_checkpoint, right, kinds)
    flags = ["partial", "strict", "load_optimizer", "load_sharded_optimizer_state"]
    kinds = {"path": "path", "tag": "name?", "translate_function": "function?", **dict.fromkeys(flags, "flag")}
    right = {"path": str(folder), "tag": "tag"}
    yield Call("smp.resume_from_checkpoint", smp.resume_from_checkpoint, right, kinds)


def _rest(smp: Any) -> Iterator[Call]:
    linear = nn.Linear(2, 2)
    yield Call("smp.partition", _enter(smp.partition), {}, {"index": "index"})
    yield Call("smp.set_partition", smp.set_partition, {"module": linear, "index": 0}, {"module": "module"})
    kinds = {"tensor_parallelism": "flag", "dtype": "dtype"}
    yield Call("smp.model_creation", _enter(smp.model_creation), {}, kinds)
    delay = smp.delay_param_initialization
    yield Call("smp.delay_param_initialization", _enter(delay), {}, {"enabled": "flag"})
    yield Call("smp.explain", smp.explain, {"model": linear}, {"model": "module", "run": "function?", "path": "word?"})
    right: dict[str, Any] = {"model": linear}
    settings = {
        "partitions": "count",
        "microbatches": "count",
        "active_microbatches": "count",
        "memory_weight": "share",
    }
    yield Call("smp.explain", smp.explain, right, {**settings, "pipeline": "word", "optimize": "word"})
    yield Call("smp.tensor_parallelism", _enter(smp.tensor_parallelism), {}, {"enabled": "flag"})
    kinds = {"module": "module", "enabled": "flag"}
    yield Call("smp.set_tensor_parallelism", smp.set_tensor_parallelism, {"module": linear}, kinds)
    kinds = {"module_cls": "class", "dist_module": "word", "init_hook": "word?", "return_hook": "function?"}
    right = {"module_cls": nn.Bilinear, "dist_module": smp.nn.DistributedLinear}
    yield Call("smp.tp_register_with_module", smp.tp_register_with_module, right, kinds)
    kinds = {"module": "module", "preserve_rng_state": "flag", "pack_args_as_tuple": "flag", "strategy": "word"}
    right = {"module": nn.Sequential(linear)}
    yield Call("smp.set_activation_checkpointing", smp.set_activation_checkpointing, right, kinds)
    for name, rank in (("send", "dest_rank"), ("recv_from", "src_rank")):
        right = {rank: 0, **({"obj": 1} if name == "send" else {})}
        yield Call(f"smp.{name}", getattr(smp, name), right, {rank: "word", "rank_type": "group"})
    for name in ("broadcast", "allgather", "barrier"):
        yield Call(f"smp.{name}", getattr(smp, name), {} if name == "barrier" else {"obj": 1}, {"group": "group"})
    numbers = {"init_scale": "number", "growth_factor": "above 1", "backoff_factor": "below 1"}
    kinds = {**numbers, "growth_interval": "count", "enabled": "flag"}
    yield Call("smp.amp.GradScaler", smp.amp.GradScaler, {}, kinds)
    for name in ("FusedAdam", "FusedLAMB", "FusedNovoGrad"):
        flags = dict.fromkeys(["bias_correction", "amsgrad", "set_grad_none"], "flag only")
        kinds = {"lr": "rate", "betas": "word", "eps": "rate", "weight_decay": "rate", **flags}
        right = {"params": [nn.Parameter(torch.zeros(1))]}
        yield Call(f"smp.optimizers.{name}", getattr(smp.optimizers, name), right, kinds)


KINDS |= {"above 1": {"7"}, "below 1": {"0.5"}, "flag only": {"True", "0"}}


def _modules(smp: Any) -> Iterator[Call]:
    size = {"in_features": 4, "out_features": 4}
    yield Call("smp.nn.DistributedLinear", smp.nn.DistributedLinear, size, dict.fromkeys(size, "count"))
    size = {"num_embeddings": 4, "embedding_dim": 4}
    yield Call("smp.nn.DistributedEmbedding", smp.nn.DistributedEmbedding, size, dict.fromkeys(size, "count"))
    sizes = {"num_attention_heads": 2, "attention_head_size": 2, "hidden_size": 4, "intermediate_size": 4}
    flags = ["use_normal_initialization", "pre_layernorm", "add_cross_attention", "fp32_residual_addition"]
    kinds = {**dict.fromkeys(sizes, "count"), **dict.fromkeys(flags, "flag"), "hidden_dropout_prob": "share"}
    kinds |= {"activation": "word", "layernorm_epsilon": "rate", "causal_mask_size": "size?"}
    for name in ("DistributedTransformerLayer", "DistributedTransformer", "DistributedTransformerLMHead"):
        right: dict[str, Any] = dict(sizes)
        own = {}
        if name != "DistributedTransformerLayer":
            right["num_layers"], own["num_layers"] = 1, "count"
        if name == "DistributedTransformerLMHead":
            right |= {"vocab_size": 4, "num_positions": 4}
            own |= {"vocab_size": "count", "num_positions": "size", "num_token_types": "size", "add_lm_head": "flag"}
        yield Call(f"smp.nn.{name}", getattr(smp.nn, name), right, {**kinds, **own})


KINDS["size"] = {"0", "7"}
