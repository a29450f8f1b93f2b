"""What the library knows in this process: one object, filled by `smp.init` and by what is built after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from .exceptions import NotInitializedError
from .module_manager import ModuleManager

if TYPE_CHECKING:
    from .config import Config
    from .groups import Groups
    from .launch import Launch
    from .topology import Topology


@dataclass
class State:
    """The one instance is `state`. Attributes that init sets may be read after `require()`.

    after_backward: called without arguments at the end of each step, when its gradients are complete.
    loss_scale: what `model.backward` multiplies losses by; None for nothing.
    """

    initialized: bool = False
    cfg: Config = field(init=False)
    launch: Launch = field(init=False)
    topology: Topology = field(init=False)
    groups: Groups = field(init=False)
    server: Any = None
    model: Any = None
    optimizer: Any = None
    loss_scale: Callable[[], float] | None = None
    after_backward: list[Callable[[], None]] = field(default_factory=list)
    module_manager: ModuleManager = field(default_factory=ModuleManager)

    def require(self) -> State:
        """This object; raises NotInitializedError before `smp.init()`."""
        if not self.initialized:
            raise NotInitializedError("smp is not initialized: call smp.init() before anything else of smp")
        return self


state = State()
