"""The one place where `train` speaks for itself: short lines on stderr, marked as its own."""

from __future__ import annotations

import sys

__all__ = ["log"]


def log(text: str) -> None:
    """Write one line; a closed or full stderr never stops a job."""
    try:
        sys.stderr.write(f"train: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass
