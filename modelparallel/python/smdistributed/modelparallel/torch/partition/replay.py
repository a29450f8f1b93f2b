"""Make the values that a Tape describes: of some of its storages only, as if all had been made."""

from __future__ import annotations

import hashlib
from typing import Any, Iterable

import torch
from torch.utils._pytree import tree_map

from .pytree import leaves
from .tape import Entry, GeneratorRef, Ref, Tape

# Draws of others' parameters that are repeated to get ours right: some seconds. Beyond, each draw gets its own seed.
MOST_REPEATED = 2**30


class Replay:
    """One run through a tape, for the storages `wanted`.

    exact: repeat and drop all random draws of other storages, so that the values are those that the whole record would
    have given; None does so up to MOST_REPEATED elements. Otherwise each random operation is seeded by its position:
    values depend neither on the rank nor on what else is made, but differ from those of a run without a tape.
    """

    def __init__(self, tape: Tape, wanted: Iterable[int], exact: bool | None = None) -> None:
        self.tape = tape
        self.wanted = set(wanted)
        self.needed = tape.needed(self.wanted)
        others = sum(entry.elements() for entry, need in zip(tape.entries, self.needed) if entry.random and not need)
        self.exact = others <= MOST_REPEATED if exact is None else exact
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._generators: list[torch.Generator] = []
        self._last_use = self._last_uses()

    def run(self) -> dict[int, torch.UntypedStorage]:
        """The storages wanted, with data. The global generators are as before afterwards."""
        for generator, state in self.tape.generators:
            self._generators.append(torch.Generator(generator.device).set_state(state))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.tape.random_state)
            for index, (entry, need) in enumerate(zip(self.tape.entries, self.needed)):
                if need:
                    self._seed(entry)
                    self._perform(entry)
                    self._drop(index)
                elif entry.random and self.exact:
                    self._repeat(entry)
        for number in self.wanted:
            self._storage(number)
        return {number: self._storages[number] for number in self.wanted}

    def _perform(self, entry: Entry) -> None:
        args, kwargs = tree_map(self._value, (entry.args, entry.kwargs))
        output = entry.func(*args, **kwargs)
        for made, ref in zip(leaves(output), entry.outputs):
            if ref is not None and ref.storage in entry.made and ref.storage not in self._storages:
                self._storages[ref.storage] = _laid_out(made, ref).untyped_storage()

    def _repeat(self, entry: Entry) -> None:
        """Draws what the entry draws, into memory that is dropped."""
        scratch: dict[int, torch.UntypedStorage] = {}

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, Ref):
                return self._value(leaf)
            if leaf.storage not in scratch:
                size, device = self.tape.sizes[leaf.storage]
                # Zeros: probabilities, which some operations draw by, must be numbers.
                scratch[leaf.storage] = torch.zeros(size, dtype=torch.uint8, device=device).untyped_storage()
            return leaf.over(scratch[leaf.storage])

        args, kwargs = tree_map(value, (entry.args, entry.kwargs))
        entry.func(*args, **kwargs)

    def _seed(self, entry: Entry) -> None:
        if entry.random and not self.exact:
            state = self.tape.random_state.numpy().tobytes()
            digest = hashlib.sha256(state + entry.position.to_bytes(8, "little")).digest()
            torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, GeneratorRef):
            return self._generators[leaf.number]
        return leaf.over(self._storage(leaf.storage)) if isinstance(leaf, Ref) else leaf

    def _storage(self, number: int) -> torch.UntypedStorage:
        if number not in self._storages:
            if number in self.tape.given:
                self._storages[number] = self.tape.given[number].untyped_storage()
            else:
                size, device = self.tape.sizes[number]
                self._storages[number] = torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        return self._storages[number]

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for index, (entry, need) in enumerate(zip(self.tape.entries, self.needed)):
            if need:
                last.update(dict.fromkeys(entry.reads | entry.writes, index))
        return last

    def _drop(self, index: int) -> None:
        entry = self.tape.entries[index]
        for number in entry.reads | entry.writes:
            if number not in self.wanted and self._last_use.get(number) == index:
                self._storages.pop(number, None)


def _laid_out(made: torch.Tensor, ref: Ref) -> torch.Tensor:
    """made, in the geometry that the record has for it: the meta device may have chosen another one."""
    if made.stride() == ref.stride and made.storage_offset() == ref.offset:
        return made
    laid_out = torch.empty_strided(ref.size, ref.stride, dtype=ref.dtype, device=made.device)
    return laid_out.copy_(made)
