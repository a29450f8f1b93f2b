"""Layers that one checkpoint covers, as a module: a rank can be asked to run it like any module of the model."""

from __future__ import annotations

from typing import Any, Sequence

from torch import nn

from .recompute import recomputed


class Group(nn.Module):
    """Runs `layers` one after the other; keeps what goes into the first and what comes out of the last.

    It is not a part of the model: the layers keep their names, their owners and their place in the state_dict.
    """

    def __init__(self, layers: Sequence[nn.Module], preserve_rng_state: bool) -> None:
        super().__init__()
        self.layers = tuple(layers)  # a tuple, so that they are not registered a second time
        self.preserve_rng_state = preserve_rng_state

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first layer takes the arguments, each later one what the layer before it returned."""
        return recomputed(self._run, args, kwargs, preserve_rng_state=self.preserve_rng_state, modules=self.layers)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        output = self.layers[0](*args, **kwargs)
        for layer in self.layers[1:]:
            output = layer(output)
        return output
