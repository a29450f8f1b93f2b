"""What losses are multiplied by, so that small gradients survive half precision: a constant, or adapted to overflows.

The adaptive one is that of mixed precision training (arXiv 1710.03740, section 3.2), with the options that the
documentation of smp names.
"""

from __future__ import annotations

from typing import Any, Mapping

from .. import checks
from ..exceptions import SMPValueError


class LossScale:
    """A scale that stays."""

    dynamic = False

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def update(self, overflow: bool) -> None:
        """Take note of a step; `overflow`: a gradient was not finite, and the step was left out."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here."""
        return dict(vars(self))

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on from there; what this kind of scale does not have is left out."""
        for name in vars(self):
            if name in saved:
                setattr(self, name, saved[name])


class DynamicLossScale(LossScale):
    """Grows by scale_factor after scale_window good steps, shrinks by it on the delayed_shift-th overflow.

    The count of overflows begins anew when the scale grows, and with consecutive_hysteresis after any good step.
    """

    dynamic = True

    def __init__(
        self,
        init_scale: float = 2.0**32,
        scale_factor: float = 2.0,
        scale_window: int = 1000,
        min_scale: float = 1.0,
        delayed_shift: int = 1,
        consecutive_hysteresis: bool = False,
    ) -> None:
        super().__init__(init_scale)
        self.scale_factor = scale_factor
        self.scale_window = scale_window
        self.min_scale = min_scale
        self.delayed_shift = delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis
        self.good_steps = 0
        self.overflows_left = delayed_shift

    def update(self, overflow: bool) -> None:
        """Take note of a step; `overflow`: a gradient was not finite, and the step was left out."""
        if overflow:
            self.good_steps = 0
            if self.overflows_left > 1:
                self.overflows_left -= 1
            else:
                self.scale = max(self.scale / self.scale_factor, self.min_scale)
            return
        self.good_steps += 1
        if self.consecutive_hysteresis:
            self.overflows_left = self.delayed_shift
        if self.good_steps % self.scale_window == 0:
            self.overflows_left = self.delayed_shift
            self.scale *= self.scale_factor


def loss_scale(static: float | None, dynamic: bool, arguments: Mapping[str, Any]) -> LossScale:
    """The scale that the arguments of smp.DistributedOptimizer ask for; SMPValueError for wrong ones."""
    where = "smp.DistributedOptimizer"
    known = ("init_scale", "scale_factor", "scale_window", "min_scale", "delayed_shift", "consecutive_hysteresis")
    for name, value in arguments.items():
        if name not in known:
            raise SMPValueError(f"{where} has no loss scale argument {name!r}: it has {', '.join(known)}")
        if name == "consecutive_hysteresis":
            checks.flag(where, name, value)
        elif name in ("scale_window", "delayed_shift"):
            checks.whole(where, name, value, least=1)
        else:
            checks.positive(where, name, value)
    scale = LossScale(float(checks.positive(where, "static_loss_scale", 1.0 if static is None else static)))
    return DynamicLossScale(**arguments) if dynamic else scale
