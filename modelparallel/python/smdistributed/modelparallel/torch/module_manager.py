"""What is registered about kinds of modules, as clients read it from `smp.state.module_manager`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Tuple

StateDict = Dict[str, Any]
Translation = Tuple[Callable[..., StateDict], Callable[..., StateDict]]


@dataclass
class ModuleManager:
    """translate_functions: pairs (from our state_dict to the client's, from the client's to ours), in order of use."""

    translate_functions: list[Translation] = field(default_factory=list)
