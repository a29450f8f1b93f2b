"""What an optimizer updates on this rank in place of the parameters it was built with.

A part is a parameter itself, a piece of it (optimizer state sharded over replicas, as ZeRO stage 1 does:
arXiv 1910.02054), or a copy of either in float32 (master weights of half precision parameters).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

from .. import sharding
from ..exceptions import SMPUnsupportedError
from ..state import state
from ..topology import CommGroup
from . import norms, ownership, replicas
from .pieces import Piece, plan

# Every element of a parameter is updated from its own gradient and state alone.
_ELEMENTWISE = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")
_HALF = (torch.float16, torch.bfloat16)


@dataclass
class Part:
    """parameter: in the optimizer's groups. source: the model's. piece: None for all. master: parameter is a copy."""

    index: int
    source: nn.Parameter
    parameter: nn.Parameter
    piece: Piece | None = None
    master: bool = False

    @property
    def view(self) -> torch.Tensor:
        """What of the source this part stands for; one dimension if it is a piece, else the source's shape."""
        return _cut(self.source.detach(), self.piece)

    def gradient(self) -> torch.Tensor | None:
        """The part's share of the source's gradient, in the source's dtype."""
        grad = self.source.grad
        if grad is None:
            return None
        return _cut(grad.to_dense() if grad.is_sparse else grad, self.piece)


@dataclass
class _Shared:
    """Parameters that the ranks of a group have divided among them."""

    kind: CommGroup
    parameters: dict[int, torch.Tensor]
    plan: list[list[Piece]]


class Parts:
    """The parts of an optimizer; makes them the optimizer's parameters, group by group, when it is created."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, sharded: bool, masters: bool) -> None:
        self.sharded = sharded
        self.groups: list[list[nn.Parameter]] = [
            [sharding.current_parameter(parameter) for parameter in group["params"]] for group in optimizer.param_groups
        ]
        if not is_elementwise(optimizer) and any(sharding.is_sharded(source) for source in self.sources()):
            raise SMPUnsupportedError(
                f"{type(optimizer).__name__} with sharded data parallelism: a rank has parts of parameters only, so "
                f"use one that treats each element alone: {', '.join(_ELEMENTWISE)}"
            )
        self._shared: list[_Shared] = []
        self._flat: sharding.FlatGroups | None = None
        ownership.check_trained(self.sources())
        owned = ownership.owned_ids()
        self._owned = [source for source in self.sources() if owned is None or id(source) in owned]
        mine = self._divide(optimizer) if sharded else {}
        self._by_source: dict[int, Part] = {}
        others = {id(source) for source in self.sources()} - {id(source) for source in self._owned}
        for index, source in enumerate(self.sources()):
            divided = any(index in shared.parameters for shared in self._shared)
            if id(source) not in others and not (divided and index not in mine):
                piece = _shard_of(index, source) if sharding.is_sharded(source) else mine.get(index)
                self._by_source[id(source)] = _part(index, source, piece, masters)
        for group, sources in zip(optimizer.param_groups, self.groups):
            # A parameter of another rank stays: it has neither elements nor gradients, so no optimizer does anything.
            kept = [source for source in sources if id(source) in self._by_source or id(source) in others]
            group["params"] = [self._replaced(source) for source in kept]

    def _replaced(self, source: nn.Parameter) -> nn.Parameter:
        part = self._by_source.get(id(source))
        return source if part is None else part.parameter

    def _divide(self, optimizer: torch.optim.Optimizer) -> dict[int, Piece]:
        """Plans who keeps what of the owned parameters; returns this rank's pieces by index."""
        cut = is_elementwise(optimizer)
        owned = {id(source) for source in self._owned}
        sets: dict[tuple[CommGroup, torch.dtype], dict[int, torch.Tensor]] = {}
        for index, source in enumerate(self.sources()):
            kind = ownership.replicas_of(source)
            if id(source) not in owned or not source.requires_grad or not source.is_contiguous():
                continue
            if len(state.groups.members[kind]) > 1:
                sets.setdefault((kind, source.dtype), {})[index] = source
        mine: dict[int, Piece] = {}
        for (kind, _), parameters in sets.items():
            members = state.groups.members[kind]
            sizes = [(index, parameter.numel()) for index, parameter in parameters.items()]
            shared = _Shared(kind, parameters, plan(sizes, len(members), cut))
            self._shared.append(shared)
            mine.update({piece.index: piece for piece in shared.plan[members.index(state.launch.rank)]})
        return mine

    def sources(self) -> Iterator[nn.Parameter]:
        """The parameters that the optimizer was built with, in the order of their numbers in its state_dict."""
        return (source for group in self.groups for source in group)

    def owned(self) -> Sequence[nn.Parameter]:
        """The model's parameters of this rank, whole."""
        return self._owned

    def __iter__(self) -> Iterator[Part]:
        return iter(self._by_source.values())

    def take_gradients(self, factor: float = 1.0) -> None:
        """Gives the parts their gradients, those of masters times `factor`, in float32."""
        for part in self:
            if part.parameter is part.source:
                if factor != 1.0 and part.source.grad is not None:
                    part.source.grad.mul_(factor)
                continue
            grad = part.gradient()
            if grad is None:
                part.parameter.grad = None
            elif part.master:
                part.parameter.grad = grad.to(torch.float32).mul_(factor)
            else:
                part.parameter.grad = grad if factor == 1.0 else grad.mul(factor)

    def clip(self, limit: float, norm: float) -> None:
        """Scales the parts' gradients, of that norm together, down to `limit` if it is larger."""
        norms.scale_down([part.parameter.grad for part in self if part.parameter.grad is not None], limit, norm)

    def give_values(self) -> None:
        """Brings what the optimizer has updated to the model, and to the replicas."""
        with torch.no_grad():
            for part in self:
                if part.master:
                    part.view.copy_(part.parameter)
        for shared in self._shared:
            members = state.groups.members[shared.kind]
            rank = members.index(state.launch.rank)
            replicas.share(shared.parameters, shared.plan, rank, state.groups.process[shared.kind])
        if self._flat is not None:
            self._flat.refresh()

    def flat_groups(self) -> list[torch.Tensor]:
        """Of a sharded model: this rank's parts by group, float32, in one dimension; kept up to date from now on."""
        if self._flat is None:
            self._flat = sharding.FlatGroups(self.groups)
        return self._flat.tensors

    def refresh_masters(self) -> None:
        """Takes from the model what is another value there than the master's, rounded: weights that were just loaded.

        So masters that were loaded before, of the same weights, keep what half precision does not have.
        """
        with torch.no_grad():
            for part in self:
                if part.master:
                    view = part.view
                    changed = part.parameter.to(view.dtype) != view
                    part.parameter.copy_(torch.where(changed, view.float(), part.parameter))


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a parameter may be cut without a change of what the optimizer computes; known of torch's own only."""
    step = inspect.unwrap(type(optimizer).step)
    # A subclass with a step of its own may compute anything.
    return step.__module__.startswith("torch.optim") and step.__qualname__.split(".")[0] in _ELEMENTWISE


def _shard_of(index: int, source: torch.Tensor) -> Piece:
    """Which elements of a parameter that fully_shard has divided are here; it cuts rows as torch.chunk does."""
    rows = source.shape[0] if source.dim() else 1
    degree = state.cfg.sharded_data_parallel_degree
    row = source.numel() // rows if rows else 0
    start = min(dist.get_rank(sharding.shard_group()) * -(-rows // degree), rows) * row
    return Piece(index, start, start + sharding.local_shard(source).numel())


def _part(index: int, source: nn.Parameter, piece: Piece | None, masters: bool) -> Part:
    if masters and source.dtype in _HALF:
        copy = nn.Parameter(_cut(source.detach(), piece).float(), source.requires_grad)
        # What is marked on a parameter, as that it is a slice, is true of its copy.
        copy.__dict__.update(source.__dict__)
        return Part(index, source, copy, piece, master=True)
    if not sharding.is_sharded(source) and (piece is None or piece.numel == source.numel()):
        return Part(index, source, source, piece)
    return Part(index, source, nn.Parameter(_cut(source.detach(), piece), source.requires_grad), piece)


def _cut(tensor: torch.Tensor, piece: Piece | None) -> torch.Tensor:
    if sharding.is_sharded(tensor):
        return sharding.local_shard(tensor).reshape(-1)
    if piece is None or piece.numel == tensor.numel():
        return tensor
    return tensor.reshape(-1)[piece.start : piece.stop]
