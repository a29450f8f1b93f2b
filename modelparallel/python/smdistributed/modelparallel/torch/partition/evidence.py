"""What `shoal report` is told of a placement, where a job is measured: nn.ModuleLists that run in sequence over ranks.

The folder is `train`'s (docs/report.md); where it did not make one, nothing is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Mapping

from torch import nn

from .advice import slow_lists
from .records import Trace


def leave(module: nn.Module, trace: Trace | None, ranks: Mapping[str, int]) -> None:
    """Write `<output>/profiler/smp/placement.json`; whatever goes wrong costs this file alone."""
    folder = Path(os.environ.get("SM_OUTPUT_DIR", "/opt/ml/output"), "profiler")
    if not folder.is_dir():
        return
    found = slow_lists(module, trace, ranks) if trace else {}
    lists = [{"Name": name, "Modules": len(held), "Ranks": sorted(set(held))} for name, held in found.items()]
    try:
        (folder / "smp").mkdir(exist_ok=True)
        text = json.dumps({"Traced": trace is not None, "ModuleListsInSequence": lists})
        (folder / "smp" / "placement.json").write_text(text)
    except OSError:
        return
