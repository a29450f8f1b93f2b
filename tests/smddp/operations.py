"""One collective call as data, the tensors it is called with, and what it must give: for tests that make calls up.

Ranks and the judge build the same inputs from the same description, so that only results need to travel. Values are
chosen such that every order of a sum gives the same bits, in every type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
OTHERS = ("bool", "complex64", "complex128")
ARITHMETIC = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
BITWISE = ("BAND", "BOR", "BXOR")
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "reversed")
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced")
MOVING = ("broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all_single")


@dataclass(frozen=True)
class Call:
    """A collective call; ``root`` counts for those that have one, ``reduction`` for those that reduce."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = "contiguous"
    reduction: str = "SUM"
    root: int = 0
    asynchronous: bool = False
    seed: int = 0


def type_of(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def values(call: Call, rank: int, part: int = 0) -> torch.Tensor:
    """What ``rank`` contributes, contiguous; ``part`` tells the tensors of a list apart."""
    generator = torch.Generator().manual_seed((call.seed * 64 + rank) * 64 + part)
    dtype = type_of(call.dtype)
    if call.dtype == "bool":
        return torch.randint(0, 2, call.shape, generator=generator).bool()
    if call.dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        # All values of the type: sums wrap, and so must the judge's.
        low, high = max(limits.min, -(1 << 62)), min(limits.max, 1 << 62)
        return torch.randint(low, high, call.shape, generator=generator).to(dtype)
    if call.reduction == "PRODUCT":
        exponents = torch.randint(-1, 2, call.shape, generator=generator)
        signs = torch.randint(0, 2, call.shape, generator=generator) * 2 - 1
        return (signs * torch.exp2(exponents.double())).to(dtype)
    # Quarters up to four: sums of up to eight of them are exact in bfloat16's eight bits.
    quarters = torch.randint(-16, 17, call.shape, generator=generator).double() / 4
    if dtype.is_complex:
        return torch.complex(quarters, quarters.flip(0) if quarters.dim() else quarters).to(dtype)
    return quarters.to(dtype)


def laid_out(tensor: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The same elements in another layout, and the whole memory around them, to see that nothing else is written."""
    shape = list(tensor.shape)
    if layout == "contiguous" or tensor.dim() == 0:
        base = torch.zeros([*shape], dtype=tensor.dtype)
        view = base
    elif layout == "transposed":
        base = torch.zeros([*shape[:-2], *shape[:-3:-1]], dtype=tensor.dtype)
        view = base.transpose(-1, -2) if tensor.dim() > 1 else base
    elif layout == "strided":
        base = torch.zeros([*shape[:-1], shape[-1] * 2 + 1], dtype=tensor.dtype)
        view = base[..., 1::2]
    elif layout == "offset":
        base = torch.zeros([shape[0] + 3, *shape[1:]], dtype=tensor.dtype)
        view = base[2 : 2 + shape[0]]
    else:
        base = torch.zeros(shape[::-1], dtype=tensor.dtype)
        view = base.permute(*range(tensor.dim() - 1, -1, -1))
    view.copy_(tensor)
    return view, base


def reduced(tensors: list[torch.Tensor], reduction: str) -> torch.Tensor:
    """The definition: exact for floats and averages, wrapping for other sums of integers, halves rounded once."""
    dtype = tensors[0].dtype
    if reduction == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
        return _integer_average(tensors)
    wide = dtype if not dtype.is_floating_point else torch.float64
    total = tensors[0].to(wide)
    for tensor in tensors[1:]:
        total = _COMBINE[reduction](total, tensor.to(wide))
    if reduction == "AVG":
        total = torch.div(total, len(tensors))
    return total.to(dtype)


def _integer_average(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum in Python's integers, which do not wrap, divided towards zero."""
    totals = (sum(column) for column in zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True))
    averages = [abs(total) // len(tensors) * (1 if total >= 0 else -1) for total in totals]
    return torch.tensor(averages, dtype=tensors[0].dtype).reshape(tensors[0].shape)


_COMBINE: dict[str, Any] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def outputs(call: Call, rank: int, size: int) -> list[torch.Tensor]:
    """What ``rank`` must hold afterwards."""
    everyone = [values(call, one) for one in range(size)]
    name = call.name
    if name == "all_reduce":
        return [reduced(everyone, call.reduction)]
    if name == "all_reduce_coalesced":
        return [reduced([values(call, one, part) for one in range(size)], call.reduction) for part in range(3)]
    if name == "reduce":
        return [reduced(everyone, call.reduction)] if rank == call.root else []
    if name.startswith("reduce_scatter"):
        return [reduced([values(call, one, rank) for one in range(size)], call.reduction)]
    if name == "broadcast":
        return [everyone[call.root]]
    if name == "scatter":
        return [values(call, call.root, rank)]
    if name == "gather":
        return everyone if rank == call.root else []
    if name == "all_to_all_single":
        return [torch.stack([values(call, one, rank) for one in range(size)])]
    return everyone if name == "all_gather" else [torch.stack(everyone)]
