"""What the two sublayers of a transformer layer share: layer normalizations, dropout and the residual connection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layer_norm import RegionLayerNorm
from .options import TransformerOptions


class Sublayer(nn.Module):
    """Reads and writes hidden states in the region's layout.

    standalone: whether `forward` is given this rank's own samples (a layer that a script uses by itself), and has to
    enter the region and leave it; a larger distributed module sets it to False in its parts.
    """

    standalone = True
    pre_layernorm: RegionLayerNorm | None
    layernorm: RegionLayerNorm | None

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.options = options

    def add_layernorms(self) -> None:
        """Creates the normalizations of the options; after the other parts, as the documented reference does."""
        options = self.options
        size, epsilon = options.hidden_size, options.layernorm_epsilon
        self.pre_layernorm = RegionLayerNorm(size, epsilon) if options.pre_layernorm else None
        self.layernorm = RegionLayerNorm(size, epsilon) if options.post_layernorm else None

    def hidden_dropout(self) -> float:
        """Probability of the dropout of hidden states, now."""
        return self.options.hidden_dropout_prob if self.training else 0.0

    def prepare(self, hidden: Tensor) -> Tensor:
        """What the sublayer computes with."""
        return hidden if self.pre_layernorm is None else self.pre_layernorm(hidden)

    def finish(self, hidden: Tensor, branch: Tensor) -> Tensor:
        """The sublayer's output, from its input and what it computed."""
        if self.layernorm is None and not self.options.add_residual:
            return branch
        if self.options.fp32_residual_addition:
            wide = torch.promote_types(branch.dtype, torch.float32)
            hidden, branch = hidden.to(wide), branch.to(wide)
        total = hidden + branch
        return total if self.layernorm is None else self.layernorm(total)
