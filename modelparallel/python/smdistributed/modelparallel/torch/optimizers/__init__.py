"""Optimizers under the names of apex's fused ones, in plain torch: they run on any device and know of partitions."""

from .adam import FusedAdam
from .lamb import FusedLAMB
from .novograd import FusedNovoGrad

# The documentation writes FusedLamb, scripts FusedLAMB.
FusedLamb = FusedLAMB

__all__ = ["FusedAdam", "FusedLAMB", "FusedLamb", "FusedNovoGrad"]
