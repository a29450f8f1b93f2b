"""What DDP is measured with, as data: networks as lists of layers, and what a link allows for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """Shapes of a network's parameters, layer by layer in forward order, and how its computation is stood in for.

    `forward_seconds` and `backward_seconds` are slept, divided among the layers by their parameters; where they are 0
    the layers are real fully connected ones and compute.
    """

    name: str
    title: str
    layers: tuple[tuple[Shape, ...], ...]
    bucket_megabytes: float
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    batch: int = 0

    @property
    def layer_sizes(self) -> list[int]:
        """Bytes of float32 gradients of each layer."""
        return [sum(4 * math.prod(shape) for shape in layer) for layer in self.layers]

    @property
    def gradient_bytes(self) -> int:
        return sum(self.layer_sizes)

    def share(self, seconds: float, layer: int) -> float:
        """A layer's part of `seconds`."""
        return seconds * self.layer_sizes[layer] / self.gradient_bytes


def fully_connected(widths: Sequence[int]) -> tuple[tuple[Shape, ...], ...]:
    """Weight and bias of each layer."""
    return tuple(((out, into), (out,)) for into, out in itertools.pairwise(widths))


def _resnet18() -> tuple[tuple[Shape, ...], ...]:
    """ResNet-18 for 1000 classes (He et al., 2016, table 1): 11,689,512 parameters with those of batch norm."""
    layers: list[tuple[Shape, ...]] = [((64, 3, 7, 7), (64,), (64,))]
    into = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            for source in (into, width):
                layers.append(((width, source, 3, 3), (width,), (width,)))
            if block == 0 and into != width:
                layers.append(((width, into, 1, 1), (width,), (width,)))
            into = width
    return (*layers, ((1000, 512), (1000,)))


# Digits of 28 x 28 pixels, 1024 wide, ten classes: 6.06 million parameters, 24 MB of gradients. One bucket a layer.
_WIDTHS = (784, 1024, 1024, 1024, 1024, 1024, 1024, 10)
SEVEN_LAYERS = Network(
    "seven-layer", "seven fully connected layers, computed", fully_connected(_WIDTHS), bucket_megabytes=4, batch=64
)
RESNET18 = Network(
    "resnet18",
    "gradients of ResNet-18, its computation slept",
    _resnet18(),
    bucket_megabytes=4,
    forward_seconds=0.1,
    backward_seconds=0.2,
)
# The step of one host is slept, so that two cores can play eight hosts; its length is our choice, and decides with the
# link's rate what is possible: see the bound.
SCALING = Network(
    "scaling",
    "seven fully connected layers, their computation slept",
    fully_connected(_WIDTHS),
    bucket_megabytes=4,
    forward_seconds=0.3,
    backward_seconds=0.6,
)
NETWORKS = {network.name: network for network in (SEVEN_LAYERS, RESNET18, SCALING)}


def link_bound(network: Network, hosts: int, bytes_per_second: float) -> float:
    """Seconds that a host's link needs for all gradients: 2 (hosts - 1) / hosts of them each way."""
    return 2 * (hosts - 1) / hosts * network.gradient_bytes / bytes_per_second


def step_bound(network: Network, hosts: int, bytes_per_second: float) -> float:
    """Least seconds of a step whose computation is slept: each layer's gradients may leave as soon as they are there,
    last layer first, and the link carries them one after the other."""
    ready = free = network.forward_seconds
    for layer in reversed(range(len(network.layers))):
        ready += network.share(network.backward_seconds, layer)
        seconds = 2 * (hosts - 1) / hosts * network.layer_sizes[layer] / bytes_per_second
        free = max(free, ready) + seconds
    return max(free, ready)
