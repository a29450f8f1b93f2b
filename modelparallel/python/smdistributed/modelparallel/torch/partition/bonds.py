"""Which modules must be on one rank, whatever that costs.

- Modules that share a parameter: a rank holds the storage, so both run there.
- A module that reads another's parameters without calling it: those are empty on any other rank.
- Modules that never ran in the trace, unless siblings of their kind in a list did (experts that got no token): with the
  module around them, which is the only one that can use them.
- Everything inside a module whose own code reads the parameters of its children on paths that a trace may not take.
"""

from __future__ import annotations

import torch
from torch import nn

from .records import Trace
from .watch import STEP

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# Their children's weights go straight into fused kernels: always (MultiheadAttention), or in evaluation only.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def indivisible(module: nn.Module) -> bool:
    """Whether all of module has to be on one rank: see the reasons beside each case. A class opts in with
    `_smp_indivisible = True`.
    """
    if isinstance(module, (*_FUSED, torch.jit.ScriptModule, nn.ParameterList, nn.ParameterDict)):
        return True
    if getattr(module, "_smp_indivisible", False) is True:
        return True
    # Compiled code (torch.compile(module), module.compile()) does not call the modules that it was compiled from.
    if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
        return True
    # A parametrised weight is computed by a child whenever the attribute is read.
    return "parametrizations" in module._modules


def bonds(module: nn.Module, trace: Trace | None) -> dict[str, str]:
    """For every module that is bound to another one, a name that stands for its group (of that group's members)."""
    groups = _Groups()
    holder: dict[int, str] = {}
    modules = dict(module.named_modules())
    for name, each in modules.items():
        for parameter in each.parameters(recurse=False):
            groups.join(holder.setdefault(id(parameter), name), name)
    for name, each in modules.items():
        if indivisible(each):
            whole = name
            if isinstance(each, (nn.ParameterList, nn.ParameterDict)) and name:
                whole = name.rpartition(".")[0]
            for inner, holds in each.named_modules(prefix=name):
                if inner in modules and any(True for _ in holds.parameters(recurse=False)):
                    groups.join(whole, inner)
    if trace is not None:
        for user, owner in sorted(trace.uses):
            if user != STEP:
                groups.join(user, owner)
        _bind_idle(modules, trace, groups)
    return groups.named()


def _bind_idle(modules: dict[str, nn.Module], trace: Trace, groups: _Groups) -> None:
    owners = {owner for _, owner in trace.uses}
    for name, each in modules.items():
        if trace.called(name) or name in owners or not any(True for _ in each.parameters(recurse=False)):
            continue
        above = name
        idle = True
        while above and not trace.called(above):
            if _has_called_twin(above, modules, trace):
                idle = False
                break
            above = above.rpartition(".")[0]
        if idle and above != name:
            groups.join(above, name)


def _has_called_twin(name: str, modules: dict[str, nn.Module], trace: Trace) -> bool:
    parent = name.rpartition(".")[0]
    if not isinstance(modules[parent], _CONTAINERS):
        return False
    kind = type(modules[name])
    prefix = f"{parent}." if parent else ""
    return any(
        type(child) is kind and trace.called(prefix + key)
        for key, child in modules[parent].named_children()
        if prefix + key in modules
    )


class _Groups:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def join(self, one: str, other: str) -> None:
        if one != other:
            first, second = self._top(one), self._top(other)
            if first != second:
                self._above[second] = first

    def _top(self, name: str) -> str:
        while name in self._above:
            name = self._above[name]
        return name

    def named(self) -> dict[str, str]:
        tops = {name: self._top(name) for name in self._above}
        return {**tops, **{top: top for top in tops.values()}}
