"""Translates state_dicts between distributed transformers and the models of Hugging Face, by tables of names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Tuple

import torch
from torch import Tensor

from ...exceptions import SMPValueError

StateDict = Dict[str, Any]
Translations = Tuple[Callable[..., StateDict], Callable[..., StateDict]]
KINDS = ("weight", "bias")
# Buffers that older releases saved with a layer: masks and angles, which are no weights.
_BUFFERS = re.compile(r"\.(attn|attention)\.(bias|masked_bias)$|\.inv_freq$|\.embed_positions$")


@dataclass(frozen=True)
class Join:
    """How tensors of ours become one of theirs, and back. heads: number of attention heads of the model."""

    join: Callable[[list[Tensor], int], Tensor]
    part: Callable[[Tensor, int, int], list[Tensor]]
    needs_heads: bool = False


def _transposed(x: Tensor) -> Tensor:
    return x.t().contiguous() if x.dim() == 2 else x


def _by_head(parts: list[Tensor], heads: int) -> Tensor:
    split = [one.reshape(heads, -1, *one.shape[1:]) for one in parts]
    return torch.stack(split, 1).flatten(0, 2)


def _from_heads(x: Tensor, count: int, heads: int) -> list[Tensor]:
    return [one.flatten(0, 1).contiguous() for one in x.reshape(heads, count, -1, *x.shape[1:]).unbind(1)]


def _rows(x: Tensor, count: int) -> list[Tensor]:
    return [one.contiguous() for one in x.chunk(count, 0)]


SAME = Join(lambda parts, _: parts[0], lambda x, _, __: [x])
# transformers' Conv1D has its weight [in, out]; several of them side by side are one.
CONV1D = Join(lambda p, _: _transposed(torch.cat(p)), lambda x, count, _: _rows(_transposed(x), count))
# GPT-NeoX has query, key and value of a head beside each other.
BY_HEAD = Join(_by_head, _from_heads, needs_heads=True)


@dataclass(frozen=True)
class Names:
    """layer: (ours, theirs, how) of each linear map or normalization of a layer, `ours` being one name or several.

    our_layers, their_layers: where the layers are, before their index. top: names outside of layers, ours to theirs.
    """

    our_layers: str
    their_layers: str
    layer: tuple[tuple[tuple[str, ...], str, Join], ...]
    top: dict[str, str] = field(default_factory=dict)
    tied_head: bool = False

    def to_theirs(self, state: StateDict, heads: int | None = None) -> StateDict:
        """A state_dict of ours with the names and shapes of theirs; other keys are kept."""
        found, layers = self._sorted(state, self.our_layers, self.top)
        for (prefix, index), held in layers.items():
            at = f"{prefix}{self.their_layers}.{index}."
            for ours, theirs, how in self.layer:
                for kind in KINDS:
                    names = [f"{one}.{kind}" for one in ours]
                    if all(name in held for name in names):
                        parts = [held.pop(name) for name in names]
                        found[f"{at}{theirs}.{kind}"] = how.join(parts, _heads(how, heads))
            found.update({at + name: value for name, value in held.items()})
        return found

    def to_ours(self, state: StateDict, heads: int | None = None) -> StateDict:
        """A state_dict of theirs with the names and shapes of ours; buffers of theirs are left out."""
        state = {key: value for key, value in state.items() if not _BUFFERS.search(key)}
        found, layers = self._sorted(state, self.their_layers, {theirs: ours for ours, theirs in self.top.items()})
        for (prefix, index), held in layers.items():
            at = f"{prefix}{self.our_layers}.{index}."
            for ours, theirs, how in self.layer:
                for kind in KINDS:
                    if f"{theirs}.{kind}" in held:
                        parts = how.part(held.pop(f"{theirs}.{kind}"), len(ours), _heads(how, heads))
                        found.update({f"{at}{name}.{kind}": one for name, one in zip(ours, parts)})
            found.update({at + name: value for name, value in held.items()})
        for key in [key for key in found if key.endswith("word_embedding.weight")] if self.tied_head else []:
            # Files leave out the second of two names of one weight.
            found.setdefault(key[: -len("word_embedding.weight")] + "lm_head.weight", found[key])
        return found

    @staticmethod
    def _sorted(
        state: StateDict, layers: str, top: dict[str, str]
    ) -> tuple[StateDict, dict[tuple[str, str], StateDict]]:
        """What lies outside of layers, renamed, and what lies in each layer, by its name in it."""
        in_layer = re.compile(rf"^((?:.*\.)?){re.escape(layers)}\.(\d+)\.(.+)$")
        outside = [(re.compile(rf"^((?:.*\.)?){re.escape(a)}\.({'|'.join(KINDS)})$"), b) for a, b in top.items()]
        found: StateDict = {}
        held: dict[tuple[str, str], StateDict] = {}
        for key, value in state.items():
            match = in_layer.match(key)
            if match:
                held.setdefault((match[1], match[2]), {})[match[3]] = value
                continue
            for pattern, name in outside:
                match = pattern.match(key)
                if match:
                    key = f"{match[1]}{name}.{match[2]}"
                    break
            found[key] = value
        return found, held


def _heads(how: Join, heads: int | None) -> int:
    if how.needs_heads and heads is None:
        raise SMPValueError(
            "the number of attention heads is not known: pass num_attention_heads, or translate after the model was "
            "given to smp.DistributedModel"
        )
    return heads or 1


def in_place(
    names: Callable[[], Names], heads: Callable[[int | None], int | None] = lambda given: given
) -> Translations:
    """The translations (to theirs, to ours) for a model of which only the layers were replaced, where they were.

    heads: finds the number of attention heads, where the weights do not tell.
    """

    def blocks() -> Names:
        return replace(names(), our_layers=names().their_layers, top={}, tied_head=False)

    def to_theirs(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
        del max_seq_len
        return blocks().to_theirs(state_dict, heads(None))

    def to_ours(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
        del max_seq_len
        return blocks().to_ours(state_dict, heads(None))

    return to_theirs, to_ours
