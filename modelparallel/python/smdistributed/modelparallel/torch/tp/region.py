"""The distributed region: how a tensor looks between the entry of a distributed module and its exit.

Outside it, a tensor [B, S, H] holds this rank's own samples. Inside, all t ranks of the group work on the samples of
all of them (N = t * B; with prescaled_batch they have the same samples anyway, N = B), in one of two layouts:

  memory:  [N, S, H/t]   each rank keeps one slice of the hidden dimension between sublayers
  speed:   [N, S, H]     each rank keeps all of it and computes what lies between sublayers t times

Both give the same numbers. The losses of t ranks reach a parameter inside, so `parameter` divides its gradient by t:
what is then averaged over replicas is the gradient of the mean over all data-parallel ranks, as outside.
"""

from __future__ import annotations

from typing import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..exceptions import SMPValueError
from . import functions, world

# Numbers that tell a shape: how many dimensions, and their sizes.
_WIDTH = 8


def check_batch(x: Tensor) -> None:
    """Raises SMPValueError, on all ranks of the group, unless they call with tensors of one shape and type.

    A collective over tensors of different sizes would hang or mix samples. Travels over the control group, so that no
    device stream is waited for.
    """
    enter_masks(x, [])


def enter_masks(x: Tensor, masks: Sequence[Tensor | None], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    """The same check of `x`, and masks that are added to scores, [B or 1, ...] -> those of all samples of the region.

    A rank may have a mask where another has none, or one of fewer sizes: models leave out masks that hide nothing. Then
    all have one. Each rank adds a mask to the scores of its own heads. dtype: of the masks, None for that of `x`.
    """
    if world.tp_size() == 1:
        return list(masks)
    said = torch.tensor([x.element_size(), *_padded(x), *(one for mask in masks for one in _padded(mask))])
    heard = [said.clone() for _ in range(world.tp_size())]
    if not world.alone():
        dist.all_gather(heard, said, group=world.control_group())
    rows = torch.stack(heard).view(world.tp_size(), -1)
    if not bool((rows[:, : _WIDTH + 1] == rows[0, : _WIDTH + 1]).all()):
        shapes = ", ".join(str(tuple(row[2 : 2 + int(row[1])].tolist())) for row in rows)
        raise SMPValueError(
            f"a distributed module was called with tensors of different shapes or types on the tensor-parallel ranks "
            f"(shapes {shapes}): give every rank as many samples, of one length (drop_last=True in the loader)"
        )
    dtype = dtype or x.dtype
    return [_entered(x, mask, rows[:, 1 + _WIDTH * at :][:, :_WIDTH], dtype) for at, mask in enumerate(masks, 1)]


def _padded(x: Tensor | None) -> list[int]:
    """[number of dimensions or -1 for no tensor, sizes, zeros]: _WIDTH numbers."""
    found = [-1] if x is None else [x.dim(), *x.shape]
    return [*found, *[0] * _WIDTH][:_WIDTH]


def _entered(x: Tensor, mask: Tensor | None, rows: Tensor, dtype: torch.dtype) -> Tensor | None:
    count, *sizes = rows.max(0).values.tolist()
    if count < 0:
        return None
    mask = torch.zeros([1] * count, dtype=dtype, device=x.device) if mask is None else mask
    # What a wider type holds may be infinite in this one.
    mask = mask.clamp(min=torch.finfo(dtype).min).to(dtype).expand(sizes[:count])
    if world.prescaled() or mask.shape[0] != x.shape[0]:
        return functions.copy_for_parts(mask)
    return functions.join_for_parts(mask, 0)


def enter(x: Tensor) -> Tensor:
    """Own samples [B, S, H] -> the region's layout."""
    if world.prescaled():
        return functions.take(x, -1) if world.sliced_activations() else x
    return functions.batch_to_hidden(x) if world.sliced_activations() else functions.join(x, 0)


def leave(x: Tensor) -> Tensor:
    """The region's layout -> own samples [B, S, H]."""
    if world.prescaled():
        return functions.join(x, -1) if world.sliced_activations() else x
    return functions.hidden_to_batch(x) if world.sliced_activations() else functions.take(x, 0)


def enter_ids(ids: Tensor) -> Tensor:
    """Whole numbers [B, ...] -> those of all samples of the region [N, ...]."""
    return ids if world.prescaled() else functions.join(ids, 0)


def whole(x: Tensor) -> Tensor:
    """The region's layout -> [N, S, H], of which each rank computes another part of the result."""
    return functions.join_for_parts(x, -1) if world.sliced_activations() else functions.copy_for_parts(x)


def from_slices(x: Tensor) -> Tensor:
    """[N, S, H/t] -> the region's layout."""
    return x if world.sliced_activations() else functions.join(x, -1)


def to_slices(x: Tensor) -> Tensor:
    """The region's layout -> [N, S, H/t]."""
    return x if world.sliced_activations() else functions.take(x, -1)


def parameter(p: Tensor) -> Tensor:
    """A parameter used inside the region, see above."""
    return functions.scale_gradient(p, 1.0 if world.prescaled() else 1.0 / world.tp_size())


def vector(p: Tensor) -> Tensor:
    """A replicated parameter [H], as it is applied in the region's layout."""
    return functions.take(parameter(p), -1) if world.sliced_activations() else parameter(p)


def sum_rows(partial: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """Summands [N, S, H] of a linear map split by rows -> dropout(their sum + bias) in the region's layout.

    Dropout is applied to slices in both layouts: ranks that drew masks for the same elements would drift apart.
    """
    if not world.sliced_activations() and dropout == 0.0:
        total = functions.sum_to_all(partial)
        return total if bias is None else total + parameter(bias)
    total = functions.sum_to_slices(partial, -1)
    if bias is not None:
        total = total + functions.take(parameter(bias), -1)
    return from_slices(F.dropout(total, dropout))
