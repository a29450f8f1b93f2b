"""`smp.explain`: the tree of a model with costs and ranks, what is wrong with it, and the schedule that comes of it."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from torch import nn

from .. import checks
from .. import config as configuration
from ..config import Config
from ..exceptions import SMPUnsupportedError, SMPValueError
from ..state import state
from .advice import advice
from .decide import Decision, decide_with, latest
from .draw import svg
from .schedule import Schedule, simulate
from .table import Row, rows_of, table
from .trace import trace as trace_model
from .way import way

# Of a message, in forward passes of the whole model: as good as nothing, but what arrives by message comes after what
# is there already, and that decides between schedules.
HOP = 1e-3
_SETTINGS = ("pipeline_parallel_degree", "microbatches", "active_microbatches", "pipeline", "memory_weight", "optimize")


@dataclass(frozen=True)
class Explanation:
    """What smp.explain found; str() of it is the text that was printed.

    rows: a Row for each module. warnings: sentences. schedule: the simulated step. ranks: pp rank by module name.
    """

    rows: list[Row]
    warnings: list[str]
    schedule: Schedule
    ranks: dict[str, int]
    traced: bool

    def __str__(self) -> str:
        """The table, the load of each rank, the warnings and the schedule in a line."""
        return table(self.rows, self.warnings, self.schedule, self.traced)

    def to_json(self) -> str:
        """Everything as JSON: rows, warnings, ranks, schedule with its events (times in forward passes)."""
        document = dataclasses.asdict(self)
        document["schedule"].update(length=self.schedule.length, bubble=self.schedule.bubble)
        return json.dumps(document, indent=1)

    def to_svg(self) -> str:
        """The schedule as a picture."""
        return svg(self.schedule)

    def draw(self, path: str) -> None:
        """Writes the picture of the schedule to a file, which must end in .svg."""
        if not str(path).endswith(".svg"):
            raise SMPValueError(f"the picture was to be written to {str(path)!r}: it is SVG, give a name that ends so")
        Path(path).write_text(self.to_svg(), encoding="utf-8")


def explain(
    model: nn.Module, run: Callable[[], Any] | None = None, path: str | None = None, **settings: Any
) -> Explanation:
    """Prints which rank gets which module of `model`, at what cost, and what the pipeline will look like.

    model: a plain module, or a DistributedModel; one that is partitioned is explained as it was placed, on the rank
    that decided it (global rank 0). run: performs a forward pass of one micro-batch, to trace; without it modules are
    weighed by their parameters. path: where to write the picture of the schedule (.svg). settings: partitions,
    microbatches, active_microbatches, pipeline, memory_weight and optimize in place of those of smp.init, which need
    not have been called.

    Returns the Explanation. Raises SMPConfigError for settings that cannot be, SMPUnsupportedError on other ranks.
    """
    module = getattr(model, "module", None) if hasattr(model, "partitioned") else model
    if not isinstance(module, nn.Module):
        checks.refuse("smp.explain", "model", model, "an nn.Module")
    if run is not None:
        checks.function("smp.explain", "run", run)
    if path is not None and not checks.path("smp.explain", "path", path).endswith(".svg"):
        checks.refuse("smp.explain", "path", path, "the name of an SVG file, ending in .svg")
    found = _placed(module) if getattr(model, "partitioned", False) else _decided(module, run, settings)
    text = str(found)
    sys.stdout.write(text + "\n")
    if path is not None:
        found.draw(path)
    return found


def _placed(module: nn.Module) -> Explanation:
    decision = latest(module)
    if decision is None:
        raise SMPUnsupportedError(
            "smp.explain was called for a partitioned model on a rank that did not decide its partition: "
            "call it on global rank 0, or before the first step"
        )
    return explained(module, decision)


def _decided(module: nn.Module, run: Callable[[], Any] | None, settings: dict[str, Any]) -> Explanation:
    cfg = _configured(settings)
    found = trace_model(module, run) if run is not None else None
    return explained(module, decide_with(module, found, cfg))


def explained(module: nn.Module, decision: Decision) -> Explanation:
    """The Explanation of a decision."""
    cfg, tree = decision.cfg, decision.tree
    devices = cfg.pipeline_parallel_degree
    schedule = simulate(
        way(module, tree, decision.ranks),
        devices,
        cfg.microbatches,
        min(cfg.active_microbatches, cfg.microbatches),
        cfg.pipeline,
        hop=HOP,
    )
    warnings = advice(module, decision.trace, tree, decision.ranks, devices)
    rows = rows_of(module, decision.trace, tree, decision.ranks)
    return Explanation(rows, warnings, schedule, dict(decision.ranks), decision.trace is not None)


def _configured(settings: dict[str, Any]) -> Config:
    given = dict(settings)
    if "partitions" in given:
        given["pipeline_parallel_degree"] = given.pop("partitions")
    unknown = sorted(set(given) - set(_SETTINGS))
    if unknown:
        raise SMPValueError(f"smp.explain has no setting {unknown[0]!r}: it has partitions and {', '.join(_SETTINGS)}")
    base = state.cfg if state.initialized else None
    kept = {name: getattr(base, name) for name in base.given} if base else {}
    return configuration.from_values({**kept, **given})
