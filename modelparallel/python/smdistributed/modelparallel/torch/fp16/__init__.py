"""Half precision training: loss scales, and the optimizer with float32 master weights."""

from .casts import cast_at_root
from .loss_scale import DynamicLossScale, LossScale, loss_scale
from .optimizer import Fp16Optimizer

__all__ = ["DynamicLossScale", "Fp16Optimizer", "LossScale", "cast_at_root", "loss_scale"]
