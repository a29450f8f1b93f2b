"""Small helpers that scripts import."""

from __future__ import annotations

from .state import state


def rmsg(message: object) -> str:
    """`message` with this rank in front, for a log that all ranks write to."""
    return f"[rank {state.launch.rank}] {message}" if state.initialized else str(message)
