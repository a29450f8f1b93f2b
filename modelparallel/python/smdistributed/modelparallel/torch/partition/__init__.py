"""Which rank holds which module: tracing, the cost tree, automatic and manual placement, and what explains them."""

from .assignments import format_assignments
from .creation import model_creation
from .decide import decide
from .decision import decoded, encoded, reuse
from .delayed_init import delay_param_initialization, materialise
from .explain import Explanation, explain
from .manual import partition, set_partition
from .records import ModuleRecord, Trace
from .trace import is_tracing, trace

__all__ = [
    "Explanation",
    "ModuleRecord",
    "Trace",
    "decide",
    "decoded",
    "delay_param_initialization",
    "encoded",
    "explain",
    "format_assignments",
    "is_tracing",
    "materialise",
    "model_creation",
    "partition",
    "reuse",
    "set_partition",
    "trace",
]
