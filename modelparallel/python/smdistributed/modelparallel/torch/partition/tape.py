"""A record of the operations that gave tensors their values, so that the values can be made later, and elsewhere.

Operations are noted below autograd, on storages: a tensor is a storage with a geometry, so views, in-place writes and
`.data` need no cases of their own. A storage of the meta device can stand for one that had data. The idea is that of
deferred initialisation by recording (torchdistX); the record here also keeps the order of random draws, so that a
replay of a part draws what it would have drawn among all the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map

from .pytree import leaves

# These write all of their first argument and read nothing of it.
_OVERWRITE = {
    "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
    "uniform_", "zero_",
}  # fmt: skip


@dataclass(frozen=True)
class Ref:
    """A tensor of the record: the number of its storage and its geometry in it."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """This tensor on a storage that has data."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass(frozen=True)
class GeneratorRef:
    """A generator that was passed to an operation, by number."""

    number: int


@dataclass
class Entry:
    """An operation that wrote something. made: storages that it brought; reads: whose content it depended on.
    position: among all that were recorded, also those that were forgotten.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Ref | None]
    reads: set[int]
    writes: set[int]
    made: set[int]
    random: bool
    position: int

    def elements(self) -> int:
        """How many elements a random operation draws, at most."""
        sizes = [torch.Size(ref.size).numel() for ref in (*self.outputs, *refs_in(self.args)) if ref is not None]
        return max(sizes, default=0)


def refs_in(value: Any) -> list[Ref]:
    """The Refs anywhere inside value."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Ref)]


class Tape:
    """Everything recorded in one context. Storages have numbers; a number outlives the storage it was given for."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        # Of the global CPU generator before the first draw: a script may seed it inside the context.
        self.random_state = torch.get_rng_state()
        self._drawn = False
        # Data that came from elsewhere (files, NumPy): cannot be made again, so it is kept.
        self.given: dict[int, torch.Tensor] = {}
        self.sizes: dict[int, tuple[int, torch.device]] = {}
        self.generators: list[tuple[torch.Generator, torch.Tensor]] = []
        # A weak reference keeps the address of a storage from being used again, not its data.
        self._numbers: dict[StorageWeakRef, int] = {}
        self._count = 0
        # Where what is on meta only for the record belongs: where the last parameter was.
        self._device = torch.device("cpu")

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the storage of tensor; None if nothing recorded made it."""
        found = self._numbers.get(_weak(tensor.untyped_storage()))
        return None if found is None or found in self.given else found

    def ref(self, tensor: torch.Tensor) -> Ref:
        """How the record names tensor."""
        return _ref(self._numbers[_weak(tensor.untyped_storage())], tensor)

    def stand_in(self, real: torch.Tensor, imagined: torch.Tensor) -> None:
        """From now on the storage of `imagined` is what the storage of `real` was."""
        number = self._numbers[_weak(real.untyped_storage())]
        self._numbers[_weak(imagined.untyped_storage())] = number
        self._device = real.device

    def alive(self) -> bool:
        """Whether any storage that the record can still be asked for is in use."""
        return any(not _expired(weak) for weak in self._numbers)

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation and records it if it wrote anything."""
        named_args, named_kwargs = tree_map(self._named, (args, kwargs))
        inputs = {ref.storage for ref in refs_in((named_args, named_kwargs))}
        written = self._written(func, named_args, named_kwargs)
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random:
            self._first_draw()
        output = func(*args, **kwargs)
        outputs: list[Ref | None] = []
        made: set[int] = set()
        for leaf in leaves(output):
            if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
                outputs.append(None)
                continue
            weak = _weak(leaf.untyped_storage())
            if weak not in self._numbers:
                made.add(self._new(weak, leaf))
            outputs.append(_ref(self._numbers[weak], leaf))
        writes = {ref.storage for ref in written} | made
        if writes:
            replaced = {ref.storage for ref in written if _name(func) in _OVERWRITE and self._covers(ref)}
            if _name(func) == "copy_" and len(inputs) == 1:
                replaced = set()  # from one part of a storage to another
            self._add(Entry(func, named_args, named_kwargs, outputs, inputs - replaced, writes, made, random, 0))
        return output

    def perform_whole(self, func: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Records a function that draws all of tensor's values, as one operation, without running it."""
        named_args, named_kwargs = tree_map(self._named, ((tensor, *args), kwargs))
        ref = named_args[0]
        reads = set() if self._covers(ref) else {ref.storage}
        self._first_draw()
        self._add(Entry(func, named_args, named_kwargs, [ref], reads, {ref.storage}, set(), True, 0))
        return tensor

    def _first_draw(self) -> None:
        if not self._drawn:
            self._drawn = True
            self.random_state = torch.get_rng_state()

    def _add(self, entry: Entry) -> None:
        entry.position = self._count
        self._count += 1
        self.entries.append(entry)

    def prune(self) -> None:
        """Forgets what no tensor that is still in use depends on, but no random draw: those after it depend on them."""
        wanted = {number for weak, number in self._numbers.items() if not _expired(weak)}
        needed = self.needed(wanted)
        self.entries = [entry for entry, need in zip(self.entries, needed) if need or entry.random]
        kept = {ref.storage for entry in self.entries for ref in refs_in((entry.args, entry.kwargs))}
        self.given = {number: tensor for number, tensor in self.given.items() if number in kept}
        self._numbers = {weak: number for weak, number in self._numbers.items() if not _expired(weak)}

    def needed(self, wanted: set[int]) -> list[bool]:
        """For each entry whether the final content of the storages `wanted` depends on it."""
        live = set(wanted)
        needed: list[bool] = []
        for entry in reversed(self.entries):
            need = bool(entry.writes & live)
            if need:
                # What it wrote without reading it need not be right before.
                live -= entry.writes - entry.reads
                live |= entry.reads
            needed.append(need)
        return needed[::-1]

    def _named(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):
            for number, (known, _) in enumerate(self.generators):
                if known is leaf:
                    return GeneratorRef(number)
            self.generators.append((leaf, leaf.get_state()))
            return GeneratorRef(len(self.generators) - 1)
        if isinstance(leaf, torch.device) and leaf.type == "meta":
            return self._device
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        weak = _weak(leaf.untyped_storage())
        if weak not in self._numbers:
            self.given[self._new(weak, leaf)] = leaf.detach()
        return _ref(self._numbers[weak], leaf)

    def _new(self, weak: StorageWeakRef, tensor: torch.Tensor) -> int:
        number = len(self.sizes)
        device = self._device if tensor.device.type == "meta" else tensor.device
        self.sizes[number] = (tensor.untyped_storage().nbytes(), device)
        self._numbers[weak] = number
        return number

    def _covers(self, ref: Ref) -> bool:
        return torch.Size(ref.size).numel() * ref.dtype.itemsize == self.sizes[ref.storage][0]

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Ref]:
        written: list[Ref] = []
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[index] if index < len(args) else kwargs.get(argument.name)
                written.extend(refs_in(value))
        return written


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _expired(weak: StorageWeakRef) -> bool:
    return bool(weak.expired())  # type: ignore[no-untyped-call]


def _ref(number: int, tensor: torch.Tensor) -> Ref:
    return Ref(number, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)


def _name(func: Any) -> str:
    return str(func._overloadpacket.__name__)
