"""The constructor arguments that the transformer modules share."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .. import checks
from .module import not_divisible, not_whole, refuse

ACTIVATIONS = ("gelu", "relu", "gelu_new")


@dataclass(frozen=True)
class TransformerOptions:
    """How a transformer layer is made; sizes are those of the whole layer, over all tensor-parallel ranks.

    The first block is documented for DistributedTransformerLayer. The second are switches of speed and precision: they
    choose kernels, not functions. The third is what the transformers of Hugging Face need, with our own names:

    add_residual: a sublayer adds its input also where no layer normalization follows (GPT-2); the documented reference
    does not. scale_attention_scores: divide scores by sqrt(attention_head_size). scale_attn_by_layer_idx: and by
    layer_idx + 1. rotary_dim: number of channels of each head that are rotated by position (0: none), in adjacent
    pairs, or in halves with gpt_neox_type_rotary. parallel_attn_output: attention and output layer both read the
    layer's input. shared_pre_layernorm: and share one layer normalization (GPT-J). window_size: number of last
    positions that are attended to. activation "gelu_new": the approximation of GELU by tanh.
    """

    num_attention_heads: int = 32
    attention_head_size: int = 32
    hidden_size: int = 1024
    intermediate_size: int = 4096
    attention_dropout_prob: float = 0.1
    hidden_dropout_prob: float = 0.1
    activation: str = "gelu"
    layernorm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    use_normal_initialization: bool = False
    causal_mask_size: int | None = None
    add_cross_attention: bool = False
    pre_layernorm: bool = False
    post_layernorm: bool = True

    fp32_residual_addition: bool = False
    attention_in_fp32: bool = False
    query_key_layer_scaling: bool = False
    fused_softmax: bool = True
    fused_dropout: bool = False
    fused_bias_gelu: bool = False
    flash_attention: bool = True
    triton_flash_attention: bool = False

    use_alibi: bool = False
    alibi_bias_max: int = 8
    add_residual: bool = False
    scale_attention_scores: bool = True
    scale_attn_by_layer_idx: bool = False
    layer_idx: int | None = None
    use_qkv_bias: bool = True
    use_attn_dense_bias: bool = True
    rotary_dim: int = 0
    rotary_emb_base: float = 10000.0
    gpt_neox_type_rotary: bool = False
    parallel_attn_output: bool = False
    shared_pre_layernorm: bool = False
    window_size: int | None = None

    @property
    def std(self) -> float | None:
        """Standard deviation of normally distributed weights; None for torch's initialization."""
        return self.initializer_range if self.use_normal_initialization else None

    def obstacle(self) -> str | None:
        """Why such a layer cannot be made or split, as the beginning of a sentence; None if it can."""
        wrong = next((field for field in dataclasses.fields(self) if not self._fits(field)), None)
        if wrong is not None:
            return f"{wrong.name} is {checks.shown(getattr(self, wrong.name))}, it must be {_KINDS[str(wrong.type)]}"
        if self.activation not in ACTIVATIONS:
            return f"activation is {self.activation!r}, it must be one of {', '.join(ACTIVATIONS)}"
        if not (self.pre_layernorm or self.post_layernorm or self.shared_pre_layernorm):
            return "pre_layernorm and post_layernorm are both False, at least one must be True"
        wrong_size = not_whole(1, attention_head_size=self.attention_head_size)
        if wrong_size is not None:
            return wrong_size
        if self.rotary_dim > self.attention_head_size or self.rotary_dim % 2:
            return f"rotary_dim is {self.rotary_dim}, it must be even and at most {self.attention_head_size}"
        return not_divisible(
            num_attention_heads=self.num_attention_heads,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
        )

    def _fits(self, field: dataclasses.Field[Any]) -> bool:
        """Whether the option has the type of its field, and a probability is one."""
        value, kind = getattr(self, field.name), str(field.type)
        if kind == "str":
            return isinstance(value, str)
        if value is None:
            return kind.endswith("None")
        if kind == "bool":
            return isinstance(value, (bool, int)) and value in (0, 1)
        if isinstance(value, bool) or not isinstance(value, int if kind.startswith("int") else (int, float)):
            return False
        return 0 <= value <= (1 if field.name.endswith("_prob") else math.inf)

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of the modules."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


_KINDS = {
    "int": "a whole number of at least 0",
    "int | None": "a whole number of at least 0, or None",
    "float": "a number of at least 0, and of a probability at most 1",
    "bool": "True or False",
    "str": "a string",
}
OPTION_NAMES: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(TransformerOptions))


def options_of(kind: str, arguments: dict[str, Any], more: dict[str, Any]) -> TransformerOptions:
    """The checked options of a module of this kind: its named constructor arguments, and others by keyword.

    Raises TypeError for a keyword that is no option, and SMPConfigError for what cannot be made.
    """
    unknown = [name for name in more if name not in OPTION_NAMES]
    if unknown:
        raise TypeError(f"{kind} got an unexpected keyword argument {unknown[0]!r}; it takes {', '.join(OPTION_NAMES)}")
    known = {name: value for name, value in arguments.items() if name in OPTION_NAMES}
    options = TransformerOptions(**{**known, **more})
    refuse(kind, options.obstacle())
    return options


def obstacle_of(arguments: dict[str, Any]) -> str | None:
    """TransformerOptions.obstacle for constructor arguments, of which some are no options."""
    return TransformerOptions(**{name: value for name, value in arguments.items() if name in OPTION_NAMES}).obstacle()


def described(inputs: Any) -> str:
    """What a module was given in place of a tuple of tensors."""
    if isinstance(inputs, (tuple, list)):
        return f"a {type(inputs).__name__} of {len(inputs)}"
    return f"a {type(inputs).__name__}"
