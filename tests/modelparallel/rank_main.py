"""What a rank of rank_jobs.run_ranks runs: calls the function and leaves what it returns as a file."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path
from typing import Any


def load(source: str) -> Any:
    """The module of this file, under its own name, so that objects of its classes can be pickled between ranks."""
    name = Path(source).stem
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    call = Path(sys.argv[1])
    source, name, arguments = pickle.loads(call.read_bytes())
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK"))
    result = getattr(load(source), name)(*arguments)
    unfinished = call.with_name(f"unfinished.{rank}")
    unfinished.write_bytes(pickle.dumps(result))
    unfinished.rename(call.with_name(f"report.{rank}"))


if __name__ == "__main__":
    main()
