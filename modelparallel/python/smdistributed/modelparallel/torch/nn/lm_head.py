"""A language model of transformer layers: embeddings, layers and a head, split over the tensor-parallel group."""

from __future__ import annotations

from typing import Any, Sequence, Tuple, Union

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .. import checks
from ..tp import functions, initialize, region, shards, world
from .embedding import DistributedEmbedding
from .linear import SplitLinear
from .module import DistributedModule, not_whole, refuse
from .options import described, obstacle_of
from .transformer import DistributedTransformer

Output = Union[Tensor, Tuple[Tensor, Tensor]]


class SlicedHead(SplitLinear):
    """Hidden states in the region's layout -> logits of this rank's own samples [B, S, V]; weight [V, H/t].

    Its weight may be that of a word embedding, which has the same slices; it is then given as `tied`.
    """

    def __init__(self, hidden: int, vocabulary: int, bias: bool, std: float | None, tied: nn.Parameter | None):
        super().__init__(hidden, vocabulary, 1, bias, std)
        if tied is not None:
            self.weight = tied

    def mark_scaled(self) -> None:
        """Marks the weight: the bias is added to this rank's own samples."""
        shards.mark_scaled(self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """See the class."""
        partial = F.linear(region.to_slices(hidden), region.parameter(self.weight))
        logits = functions.sum_to_all(partial) if world.prescaled() else functions.sum_to_slices(partial, 0)
        return logits if self.bias is None else logits + self.bias


class DistributedTransformerLMHead(DistributedModule):
    """Word, position and token type embeddings, a DistributedTransformer (`transformer`), and a linear head.

    vocab_size, num_positions, num_token_types: sizes of the embeddings; no position embedding if num_positions is 0, no
    token type embedding if num_token_types is 0. add_lm_head: map the last hidden states to logits with the weights
    of the word embedding. The others are arguments of DistributedTransformer, of TransformerOptions, and:
    tie_input_output_embedding: the head has the weights of the word embedding, else its own. use_lm_head_bias: the
    head has a bias. embedding_dropout_prob: dropout of the sum of embeddings, None for hidden_dropout_prob. Raises
    SMPConfigError where sizes do not divide.
    """

    def __init__(
        self,
        num_layers: int = 12,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        vocab_size: int = 30522,
        num_positions: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        num_token_types: int = 0,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        add_lm_head: bool = True,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        embedding_dropout_prob: float | None = None,
        tie_input_output_embedding: bool = True,
        use_lm_head_bias: bool = False,
        **more: Any,
    ) -> None:
        arguments = {**_of_transformer(locals()), **more}
        kind = type(self).__name__
        refuse(kind, self.obstacle(**arguments) or not_whole(1, num_layers=num_layers, vocab_size=vocab_size))
        refuse(kind, not_whole(0, num_positions=num_positions, num_token_types=num_token_types))
        for name, value in {
            "add_lm_head": add_lm_head,
            "tie_input_output_embedding": tie_input_output_embedding,
        }.items():
            checks.flag(kind, name, value)
        super().__init__()
        self.causal, self.add_cross_attention = causal_mask_size is not None, add_cross_attention
        self.embedding_dropout = hidden_dropout_prob if embedding_dropout_prob is None else embedding_dropout_prob
        std = initializer_range if use_normal_initialization else None
        with initialize.one_stream():
            self.word_embedding = _embedding(vocab_size, hidden_size, std)
            self.position_embedding = _embedding(num_positions, hidden_size, std) if num_positions else None
            self.token_type_embedding = _embedding(num_token_types, hidden_size, std) if num_token_types else None
            self.transformer = DistributedTransformer(**arguments)
            self.transformer.standalone = False
            self.lm_head: SlicedHead | None = None
            if add_lm_head:
                tied = self.word_embedding.weight if tie_input_output_embedding else None
                self.lm_head = SlicedHead(hidden_size, vocab_size, use_lm_head_bias, std, tied)

    @classmethod
    def obstacle(cls, **arguments: Any) -> str | None:
        """See DistributedModule."""
        return obstacle_of(arguments)

    def forward(self, inputs: Sequence[Tensor | None]) -> Output:
        """Logits [N, S, V]; hidden states [N, S, H] without a head; (loss, logits) if `labels` are given.

        inputs: (input_ids [N, S], attention_mask, token_type_ids [N, S], position_ids [N or 1, S], labels [N, S]), with
        add_cross_attention (input_ids, attention_mask, token_type_ids, position_ids, cross_states [N, S2, H],
        cross_mask, labels); each but the first may be None, and the last may be left out. A mask is [N, S] with 1 at
        masked positions, or four-dimensional and added to scores. The loss is the mean cross entropy, without labels
        of -100; of the next token where the model is causal, as language models of Hugging Face have it (what the
        original does is not documented).
        """
        count = 7 if self.add_cross_attention else 5
        if not isinstance(inputs, (tuple, list)) or not 0 < len(inputs) <= count or inputs[0] is None:
            raise TypeError(
                f"DistributedTransformerLMHead takes one tuple of {count} inputs, it got {described(inputs)}"
            )
        given = [*inputs, *[None] * (count - len(inputs))]
        ids, labels = inputs[0], given[-1]
        dtype = self.word_embedding.weight.dtype
        cross = given[4:5] if self.add_cross_attention else []
        masks = region.enter_masks(
            ids, [_additive(one, dtype) for one in (given[1:2] + given[5:6][: len(cross)])], dtype
        )
        states = [self._embed(ids, given[2], given[3]), *(region.enter(one) for one in cross if one is not None)]
        hidden = self.transformer((*states, *masks))[0]
        if self.lm_head is None:
            return region.leave(hidden)
        logits: Tensor = self.lm_head(hidden)
        return logits if labels is None else (self._loss(logits, labels), logits)

    def _embed(self, ids: Tensor, types: Tensor | None, positions: Tensor | None) -> Tensor:
        found = self.word_embedding(region.enter_ids(ids))
        if self.position_embedding is not None:
            if positions is None:
                positions = torch.arange(ids.shape[-1], device=ids.device)[None]
            elif positions.shape[0] == ids.shape[0]:
                positions = region.enter_ids(positions)
            found = found + self.position_embedding(positions)
        if types is not None and self.token_type_embedding is not None:
            found = found + self.token_type_embedding(region.enter_ids(types))
        return region.from_slices(F.dropout(found, self.embedding_dropout if self.training else 0.0))

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def _embedding(number: int, size: int, std: float | None) -> DistributedEmbedding:
    """An embedding of ids of the region, in slices."""
    return DistributedEmbedding(number, size, initializer_range=std, _skip_allgather=True, _skip_scatter_and_merge=True)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask [N, S] with 1 at masked positions as one that is added to scores; others as they are."""
    if mask is None or mask.dim() != 2:
        return mask
    return mask[:, None, None, :].to(dtype) * torch.finfo(dtype).min


_OWN = {
    "self",
    "more",
    "vocab_size",
    "num_positions",
    "num_token_types",
    "add_lm_head",
    "embedding_dropout_prob",
    "tie_input_output_embedding",
    "use_lm_head_bias",
}


def _of_transformer(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in _OWN and not name.startswith("__")}
