"""How long backward waited for averaged gradients, by the clock of torch's DistributedDataParallel.

DDP waits for the futures of its buckets in C++, where neither Python nor the back end can see it. But it notes when the
computation of a backward was over and when the last gradient was averaged: in between it waited. It does so on every
back end; only on CPUs, for on a GPU it would have to wait for the device in order to tell.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

__all__ = ["Averaging"]


class Averaging:
    """The DDP models of this process.

    Attributes:
        used: whether there has been one.
    """

    def __init__(self) -> None:
        self.used = False
        self._unknown = False
        self._models: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # its last backward's end
        self._seconds = 0.0

    def add(self, model: Any) -> None:
        """Ask a new model for its times in every step, instead of now and then."""
        self.used = True
        try:
            on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
            # With this DDP writes its times to the log whenever it is asked.
            if not on_cpu or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
                self._unknown = True
                return
            model._set_ddp_runtime_logging_sample_rate(1)
            self._models[model] = 0
        except Exception:  # torch names these for its own use, and may change them
            self._unknown = True

    def begin(self) -> None:
        """A step begins."""
        self._seconds = 0.0

    def look(self) -> None:
        """Add what backwards have waited since the last look; of several backwards of one model, the last."""
        for model, seen in list(self._models.items()):
            try:
                model.logger.set_runtime_stats_and_log()
                times = model.logger._get_ddp_logging_data().ints_map
                computed, averaged = times["backward_compute_time_end"], times["backward_comm_time_end"]
            except Exception:
                self._unknown = True
                self._models.pop(model, None)
                continue
            if averaged != seen and averaged > 0:
                self._models[model] = averaged
                self._seconds += max(0, averaged - computed) * 1e-9

    def waited(self) -> float | None:
        """Return the seconds of this step; None where they cannot be told."""
        self.look()
        return None if self._unknown else self._seconds
