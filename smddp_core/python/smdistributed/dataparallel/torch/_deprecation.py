"""The one warning of the API of releases 1.0 to 1.3."""

from __future__ import annotations

import functools
import sys
import warnings

_OURS = "smdistributed.dataparallel."
_IMPORT_SYSTEM = "importlib."
_TEXT = (
    "smdistributed.dataparallel.torch.distributed and its DistributedDataParallel are deprecated since release 1.4 and "
    "kept for scripts written for 1.0 to 1.3. New ones import smdistributed.dataparallel.torch.torch_smddp and use "
    "torch.distributed with 'smddp' as a backend (init_process_group('smddp')) and torch.nn.parallel"
)


@functools.lru_cache(maxsize=None)
def warn_once() -> None:
    """Warn once a process, in the name of the line of the user's script that imported the old module.

    A FutureWarning, because Python hides DeprecationWarnings from those who run a script.
    """
    depth = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith((_OURS, _IMPORT_SYSTEM)):
        # warnings.warn does not count the frames of the import system either.
        depth += frame.f_globals["__name__"].startswith(_OURS)
        frame = frame.f_back
    warnings.warn(_TEXT, FutureWarning, stacklevel=depth)
