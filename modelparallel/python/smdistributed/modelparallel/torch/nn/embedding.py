"""An embedding whose vectors are split over the tensor-parallel group."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ..exceptions import SMPUnsupportedError
from ..tp import functions, initialize, region, shards, world
from .module import DistributedModule, not_divisible, not_whole, refuse


class DistributedEmbedding(DistributedModule):
    """nn.Embedding with the dimension of its vectors split over the tensor-parallel group.

    num_embeddings, embedding_dim, padding_idx, scale_grad_by_freq, sparse, _weight: those of nn.Embedding (`_weight`
    is the full one); embedding_dim must be a multiple of tensor_parallel_degree (else SMPConfigError). max_norm is
    refused (SMPUnsupportedError): no rank holds a whole vector. initializer_range: standard deviation of the normal
    distribution that weights are drawn from, None for that of nn.Embedding (1). _skip_allgather: `forward` gets the
    ids of all ranks' samples already. _skip_scatter_and_merge: it returns this rank's slice for the samples of all
    ranks.

    `weight` is [num_embeddings, embedding_dim / t].
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        initializer_range: float | None = 0.02,
        _skip_allgather: bool = False,
        _skip_scatter_and_merge: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if max_norm is not None:
            raise SMPUnsupportedError(
                f"DistributedEmbedding: max_norm is {max_norm}, but no rank holds a whole vector: leave it out"
            )
        sizes = self.obstacle(embedding_dim=embedding_dim) or not_whole(1, num_embeddings=num_embeddings)
        refuse("DistributedEmbedding", sizes)
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        self.padding_idx = padding_idx
        self.norm_type, self.scale_grad_by_freq, self.sparse = norm_type, scale_grad_by_freq, sparse
        self._std = 1.0 if initializer_range is None else initializer_range
        self._skip_allgather, self._skip_scatter_and_merge = _skip_allgather, _skip_scatter_and_merge
        shape = (num_embeddings, embedding_dim // world.tp_size())
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self._given = _weight
        self.reset_parameters()
        self._given = None

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """See DistributedModule."""
        if arguments.get("max_norm") is not None:
            return f"max_norm is {arguments['max_norm']}, and no rank would hold a whole vector"
        return not_divisible(embedding_dim=arguments["embedding_dim"])

    def slices(self) -> dict[str, tuple[int, int]]:
        """See SlicedLoading."""
        return {"weight": (1, self.embedding_dim)}

    def reset_parameters(self) -> None:
        """Draws new weights; that of padding_idx is zero."""
        shards.mark(self.weight, 1)
        shards.mark_scaled(self.weight)
        initialize.fill(self.weight, (self.num_embeddings, self.embedding_dim), 1, self._draw)

    def _draw(self, full: Tensor) -> None:
        if self._given is not None:
            full.copy_(self._given)
            return
        full.normal_(0.0, self._std)
        if self.padding_idx is not None:
            full[self.padding_idx].zero_()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Ids [B, ...], whole numbers below num_embeddings -> vectors [B, ..., embedding_dim]."""
        if not self._skip_allgather:
            region.check_batch(input)
            input = region.enter_ids(input)  # noqa: A001
        found = F.embedding(
            input,
            region.parameter(self.weight),
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )
        if self._skip_scatter_and_merge:
            return found
        return functions.join(found, -1) if world.prescaled() else functions.hidden_to_batch(found)

    def extra_repr(self) -> str:
        """The sizes of the full weight."""
        return f"{self.num_embeddings}, {self.embedding_dim}, padding_idx={self.padding_idx}"
