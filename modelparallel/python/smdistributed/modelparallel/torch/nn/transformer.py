"""A transformer layer, and a stack of them, split over the tensor-parallel group."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence, Tuple

from torch import Tensor, nn

from ..tp import initialize, region
from .attention import DistributedAttentionLayer
from .layer_norm import RegionLayerNorm
from .module import DistributedModule, not_whole, refuse
from .options import TransformerOptions, described, obstacle_of, options_of
from .output import DistributedTransformerOutputLayer

Inputs = Tuple[Optional[Tensor], ...]


class DistributedTransformerLayer(DistributedModule):
    """One transformer layer: `attention`, `cross_attention` where asked for, and `output`.

    num_attention_heads, attention_head_size, hidden_size, intermediate_size: of the whole layer.
    attention_dropout_prob: of the attention probabilities; hidden_dropout_prob: of all others. activation: "gelu" or
    "relu". layernorm_epsilon: added to variances. use_normal_initialization: weights are drawn from a normal
    distribution of standard deviation initializer_range, else as torch draws them. causal_mask_size: longest
    sequence of a model whose positions see only earlier ones, None if they see all. add_cross_attention: add a layer
    whose keys and values come from cross_states. pre_layernorm, post_layernorm: normalize the input, the output, of
    each sublayer; one at least must be True. Others of TransformerOptions are taken by keyword. Raises
    SMPConfigError where sizes do not divide.
    """

    standalone = True

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **more: Any,
    ) -> None:
        options = options_of(type(self).__name__, locals(), more)
        super().__init__()
        self.options = options
        arguments = options.arguments()
        if options.shared_pre_layernorm:
            output_arguments = {**arguments, "pre_layernorm": False, "add_residual": True}
        else:
            output_arguments = arguments
        with initialize.one_stream():
            self.attention = DistributedAttentionLayer(**arguments)
            self.output = DistributedTransformerOutputLayer(**output_arguments)
            self.cross_attention: DistributedAttentionLayer | None = None
            if add_cross_attention:
                self.cross_attention = DistributedAttentionLayer(cross_attention=True, **arguments)
        for part in (self.attention, self.output, self.cross_attention):
            if part is not None:
                part.standalone = False

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """See DistributedModule."""
        return obstacle_of(arguments)

    def forward(self, inputs: Sequence[Tensor | None]) -> Inputs:
        """`inputs` with hidden_states replaced by the layer's output.

        inputs: (hidden_states [N, S, H], attention_mask [N, 1, 1, S] or None), or with add_cross_attention
        (hidden_states [N, S, H], cross_states [N, S2, H], attention_mask [N, 1, 1, S] or None, cross_mask [N, 1, 1, S2]
        or None). Masks are added to the scores of attention.
        """
        inputs = checked_inputs(type(self).__name__, inputs, self.options.add_cross_attention)
        inside = enter_all(inputs) if self.standalone else inputs
        found = self._hidden(inside)
        return (region.leave(found) if self.standalone else found, *inputs[1:])

    def _hidden(self, inputs: Sequence[Tensor | None]) -> Tensor:
        hidden, mask = inputs[0], inputs[-2] if self.options.add_cross_attention else inputs[-1]
        assert hidden is not None
        if self.options.parallel_attn_output:
            states = self.attention.prepare(hidden)
            own = states if self.options.shared_pre_layernorm else self.output.prepare(hidden)
            return hidden + self.attention.branch(states, None, mask) + self.output.branch(own)
        hidden = self.attention((hidden, mask))
        if self.cross_attention is not None:
            hidden = self.cross_attention((hidden, inputs[1], inputs[3]))
        found: Tensor = self.output(hidden)
        return found


class DistributedTransformer(DistributedModule):
    """num_layers transformer layers, in `seq_layers`, an nn.Sequential.

    Other arguments: those of DistributedTransformerLayer. final_layernorm: normalize the output of the last one too.
    local_layers: indices of the layers that window_size holds for; None for all. embedding_dropout_prob: accepted,
    because clients pass it, and of no effect: there is no embedding.
    """

    standalone = True

    def __init__(
        self,
        num_layers: int = 12,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        final_layernorm: bool = False,
        local_layers: Sequence[int] | None = None,
        embedding_dropout_prob: float | None = None,
        **more: Any,
    ) -> None:
        del embedding_dropout_prob
        options = options_of(type(self).__name__, locals(), more)
        refuse(type(self).__name__, not_whole(1, num_layers=num_layers))
        super().__init__()
        self.options, self.num_layers = options, num_layers
        with initialize.one_stream():
            layers = [DistributedTransformerLayer(**self._of_layer(i, local_layers)) for i in range(num_layers)]
        for layer in layers:
            layer.standalone = False
        self.seq_layers = nn.Sequential(*layers)
        self.layernorm = RegionLayerNorm(hidden_size, layernorm_epsilon) if final_layernorm else None

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """See DistributedModule."""
        return obstacle_of(arguments)

    def _of_layer(self, index: int, local_layers: Sequence[int] | None) -> Any:
        window = self.options.window_size if local_layers is None or index in local_layers else None
        return dataclasses.replace(self.options, layer_idx=index, window_size=window).arguments()

    def forward(self, inputs: Sequence[Tensor | None]) -> Inputs:
        """As DistributedTransformerLayer.forward."""
        inputs = checked_inputs(type(self).__name__, inputs, self.options.add_cross_attention)
        hidden = self.seq_layers(enter_all(inputs) if self.standalone else inputs)[0]
        if self.layernorm is not None:
            hidden = self.layernorm(hidden)
        return (region.leave(hidden) if self.standalone else hidden, *inputs[1:])


def checked_inputs(kind: str, inputs: Any, cross: bool) -> Inputs:
    """`inputs` as a tuple of the right length; raises TypeError for another one."""
    names = "(hidden_states, cross_states, attention_mask, cross_mask)" if cross else "(hidden_states, attention_mask)"
    if not isinstance(inputs, (tuple, list)) or len(inputs) != (4 if cross else 2) or inputs[0] is None:
        raise TypeError(f"{kind} takes one tuple {names}, it got {described(inputs)}")
    return tuple(inputs)


def enter_all(inputs: Inputs) -> Inputs:
    """(hidden_states, [cross_states,] attention_mask, [cross_mask]) of this rank's samples -> those of the region."""
    hidden = inputs[0]
    assert hidden is not None
    count = len(inputs) // 2
    masks = region.enter_masks(hidden, inputs[count:])
    states: list[Tensor | None] = [None if one is None else region.enter(one) for one in inputs[:count]]
    return (*states, *masks)


__all__ = ["DistributedTransformer", "DistributedTransformerLayer", "TransformerOptions"]
