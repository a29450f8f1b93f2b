"""Runs the cases of a module on one back end: `cases.py MODULE BACKEND FOLDER`; each rank writes its numbers there."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent / "cases"))
warnings.filterwarnings("ignore")


def main() -> None:
    module, backend, folder = sys.argv[1:]
    os.environ["SMDDP_CASES_FOLDER"] = folder
    importlib.import_module(module)
    cases = importlib.import_module("registry").CASES
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    results: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for name, case in cases.items():
        if case.ranks not in (0, dist.get_world_size()):
            continue
        start = time.monotonic()
        torch.manual_seed(7)
        try:
            results[name] = case.run()
        except Exception as error:
            # Compared too: what one back end refuses, the other must refuse in the same words.
            results[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            traceback.print_exc()
        torch._dynamo.reset() if "torch._dynamo" in sys.modules else None
        dist.barrier()
        seconds[name] = round(time.monotonic() - start, 2)
    torch.save(results, Path(folder) / f"{backend}-{dist.get_rank()}.pt")
    dist.destroy_process_group()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
