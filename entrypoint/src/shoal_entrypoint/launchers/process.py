"""One process per host: the user's script, started directly."""

from __future__ import annotations

from shoal_entrypoint.launchers.settings import Settings

__all__ = ["argv"]


def argv(settings: Settings) -> list[str]:
    """The command line."""
    return list(settings.program)
