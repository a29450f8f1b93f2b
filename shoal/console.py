"""The two streams a user sees: data on stdout, progress and errors on stderr. Rich drops colour when not a terminal."""

from rich.console import Console

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)
