"""The library's log: what a job shows without being asked, such as where the modules went."""

from __future__ import annotations

import logging
import os
import sys

LEVEL_VARIABLE = "SMP_LOG_LEVEL"

logger = logging.getLogger("smdistributed.modelparallel")


def show_log() -> None:
    """Print the log to stdout from SMP_LOG_LEVEL (default INFO) on, unless the program has set up logging itself."""
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(os.environ.get(LEVEL_VARIABLE, "INFO").upper())
