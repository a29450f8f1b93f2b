"""What a trace holds: for every module what its calls cost, and in which order they came."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ModuleRecord:
    """Sums over all calls of one module; `own` figures leave out what the modules it called cost.

    type_name: its class. calls: how often it was called. first_call: position of its first call among all, or None.
    callers: names of the modules in whose forward it was called, in order; '' is the model itself, '<step>' none.
    input_bytes, output_bytes: tensors that came in and went out. parameter_bytes, buffer_bytes: what the module itself
    holds, each tensor counted at the first module that holds it. own_operations: floating point operations, counted by
    formula. own_activation_bytes: what autograd keeps for the backward pass if that was traced, else the outputs of
    modules that call no other. own_seconds: wall clock time, None if not traced.
    """

    type_name: str
    calls: int = 0
    first_call: int | None = None
    callers: list[str] = field(default_factory=list)
    input_bytes: int = 0
    output_bytes: int = 0
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    own_operations: float = 0.0
    own_activation_bytes: int = 0
    own_seconds: float | None = None


@dataclass
class Trace:
    """One forward pass of a model.

    modules: a record for each name of `named_modules()`. order: names in the order of the calls, repeats included.
    feeds: pairs (a, b): b was called right after a by the same module, with an output of a among its inputs.
    uses: pairs (user, owner): while user ran, it used a parameter that owner holds without calling owner, so the two
    must be on one rank. times, memory: whether time and kept activations were measured.
    """

    modules: dict[str, ModuleRecord]
    order: list[str] = field(default_factory=list)
    feeds: set[tuple[str, str]] = field(default_factory=set)
    uses: set[tuple[str, str]] = field(default_factory=set)
    times: bool = False
    memory: bool = False

    def called(self, name: str) -> bool:
        """Whether the module of this name was called at all."""
        return self.modules[name].calls > 0
