"""Turns the arguments and results of Hugging Face's modules into those of distributed ones, and back."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Mapping, Sequence, Tuple

import torch
from torch import Tensor, nn

from ...exceptions import SMPUnsupportedError
from ...tp.registry import CannotDistribute

Hooks = Tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
_ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}
# Arguments that change the result in a way that the distributed modules do not have.
_REFUSED = (
    "inputs_embeds",
    "token_type_ids",
    "encoder_hidden_states",
    "head_mask",
    "output_attentions",
    "output_hidden_states",
)
# A model hands some of these on to its layers, where they mean nothing.
_REFUSED_OF_MODEL = ("logits_to_keep", "num_items_in_batch")


class _Inputs(Tuple[Any, ...]):
    """The inputs of a language model. as_tuple: the caller wants the results in a tuple, not by name."""

    as_tuple = False


@dataclass(frozen=True)
class Family:
    """A kind of model of Hugging Face. layer_options, model_options: constructor arguments, from a configuration."""

    module: str
    layer: str
    layer_options: Callable[[Any], dict[str, Any]]
    model: str | None = None
    model_options: Callable[[Any], dict[str, Any]] | None = None
    encoder: str | None = None

    def class_of(self, name: str) -> Any:
        """A class of this family's module in transformers."""
        return getattr(importlib.import_module(self.module), name)

    def has(self, name: str) -> bool:
        """Whether the installed release of transformers has this class."""
        return hasattr(importlib.import_module(self.module), name)


def activation(name: Any) -> str:
    """Our name of an activation function of theirs; raises CannotDistribute if we have none."""
    if name not in _ACTIVATIONS:
        raise CannotDistribute(f"its activation function is {name!r}, supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def no_cross_attention(config: Any) -> None:
    """Raises CannotDistribute for a configuration with cross-attention."""
    if getattr(config, "add_cross_attention", False):
        raise CannotDistribute("it has cross-attention, which only smp.nn's own modules support")


def layer_hooks(family: Family) -> Hooks:
    """Hooks from one layer to DistributedTransformerLayer."""

    def init(*args: Any, **kwargs: Any) -> Any:
        config = _config(args, kwargs)
        indices = [*args[1:2], *(kwargs[name] for name in ("layer_idx", "layer_id") if name in kwargs)]
        options = family.layer_options(config)
        index = indices[0] if indices else None
        local = options.pop("local_layers", None)
        if local is not None and index not in local:
            options["window_size"] = None
        return (), {**options, "layer_idx": index}

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = _given(family.class_of(family.layer), args, kwargs)
        hidden = given["hidden_states"]
        return ((hidden, additive(given.get("attention_mask"), hidden.dtype)),), {}

    def result(output: Any) -> Any:
        return output[0] if _returns_tensor(family.class_of(family.layer)) else (output[0], None)

    return init, forward, result


def encoder_hooks(family: Family) -> Hooks:
    """Hooks from a stack of layers to DistributedTransformer."""
    assert family.encoder is not None
    name = family.encoder

    def init(*args: Any, **kwargs: Any) -> Any:
        config = _config(args, kwargs)
        _check_outputs(config)
        return (), {**family.layer_options(config), "num_layers": config.num_hidden_layers}

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = _given(family.class_of(name), args, kwargs)
        hidden = given["hidden_states"]
        return ((hidden, additive(given.get("attention_mask"), hidden.dtype)),), {}

    def result(output: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=output[0])

    return init, forward, result


def model_hooks(family: Family) -> Hooks:
    """Hooks from a causal language model to DistributedTransformerLMHead."""
    assert family.model is not None
    name = family.model

    def init(*args: Any, **kwargs: Any) -> Any:
        assert family.model_options is not None
        config = _config(args, kwargs)
        _check_outputs(config)
        return (), family.model_options(config)

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = _given(family.class_of(name), args, kwargs, (*_REFUSED, *_REFUSED_OF_MODEL))
        mask = given.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 2:
            mask = 1 - mask.long()  # theirs has 1 where a token counts, ours where it is masked
        elif mask is not None:
            mask = additive(mask, torch.get_default_dtype())
        inputs = _Inputs((given["input_ids"], mask, None, given.get("position_ids"), given.get("labels")))
        inputs.as_tuple = given.get("return_dict") is False
        return (inputs,), {}

    def result(output: Any, inputs: Any = None) -> Any:
        from transformers.modeling_outputs import CausalLMOutputWithPast

        loss, logits = output if isinstance(output, tuple) else (None, output)
        found = CausalLMOutputWithPast(loss=loss, logits=logits)
        return found.to_tuple() if getattr(inputs, "as_tuple", False) else found

    return init, forward, result


def additive(mask: Any, dtype: torch.dtype) -> Tensor | None:
    """A mask of theirs, four-dimensional, True or 0 where a position may be seen -> one that is added to scores."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        raise SMPUnsupportedError(
            f"attention_mask is a {type(mask).__name__}: with tensor parallelism use the 'sdpa' or 'eager' attention"
        )
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
    return mask


def _given(cls: Any, args: Any, kwargs: Any, refused: Sequence[str] = _REFUSED) -> Mapping[str, Any]:
    """The arguments of a call by name; raises SMPUnsupportedError for one that would have no effect."""
    signature = inspect.signature(cls.forward)
    bound = signature.bind(None, *args, **kwargs).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            bound.update(bound.pop(parameter.name, {}))
    for name in refused:
        value = bound.get(name)
        # Older releases hand the encoder a head mask of None for each layer.
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(one, Tensor) or one for one in values):
            raise SMPUnsupportedError(
                f"{cls.__name__} was called with {name}, which its distributed counterpart does not take: leave it "
                "out, or keep this module whole with smp.set_tensor_parallelism(module, False)"
            )
    for name in ("past_key_values", "past_key_value", "layer_past"):
        past = bound.get(name)
        if past is not None and (not hasattr(past, "get_seq_length") or past.get_seq_length()):
            raise SMPUnsupportedError(
                f"{cls.__name__} was called with {name}: a distributed model keeps no keys and values, generate with "
                "the plain model"
            )
    return bound


def _config(args: Any, kwargs: Any) -> Any:
    """The configuration among the arguments of a constructor."""
    return kwargs["config"] if "config" in kwargs else args[0]


def _check_outputs(config: Any) -> None:
    """Raises CannotDistribute for a configuration that asks for results which only the plain module puts together."""
    asked = [name for name in ("output_hidden_states", "output_attentions") if getattr(config, name, False)]
    if not getattr(config, "return_dict", True):
        asked.append("return_dict=False")
    if asked:
        raise CannotDistribute(f"its configuration asks for {asked[0]}: what is inside it is distributed one by one")


@lru_cache(maxsize=None)
def _returns_tensor(cls: Any) -> bool:
    """Whether a layer returns hidden states alone, as newer releases of transformers do, or first in a tuple."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(cls.forward))))
    last = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)][-1]
    return isinstance(last, ast.Name) and last.id in ("hidden_states", "layer_output")


def config_of(module: nn.Module) -> Any:
    """The configuration of the first module in `module` that has one, or None."""
    return next((each.config for each in module.modules() if hasattr(each, "config")), None)
