"""The compiled part ``_C``, or one line that says why it does not load. Everything here imports it from this module."""

from __future__ import annotations

import torch  # first: the compiled part needs its libraries

_ADVICE = (
    "build it again with this torch installed: pip install --no-build-isolation --no-deps ./smddp_core "
    "(without the first option, pip builds for the newest torch)"
)

try:
    from smdistributed.dataparallel import _C
except ImportError as error:
    raise ImportError(
        f"smddp's compiled part does not load with torch {torch.__version__}: it is built for one torch release; "
        f"{_ADVICE} ({error})"
    ) from error

__all__ = ["_C"]


def _same_release(built_for: str, running: str) -> bool:
    return built_for.split(".")[:2] == running.split(".")[:2]


# A binary of another release may load and crash later: c10d's classes change from one to the next.
if not _same_release(_C.torch_version, torch.__version__):
    raise ImportError(f"smddp was built for torch {_C.torch_version}, this is {torch.__version__}: {_ADVICE}")
