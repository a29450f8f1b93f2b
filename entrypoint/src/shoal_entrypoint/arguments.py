"""The command line of `train`. A job has none: only people who look around in a container give arguments."""

from __future__ import annotations

import argparse
from typing import Sequence

from shoal_entrypoint import __version__

__all__ = ["main"]

_DESCRIPTION = """\
Run this host's part of a training job, as the files under /opt/ml (SAGEMAKER_BASE_DIR) and the environment
describe it. Without arguments the job is run. With --check nothing of the user's is started."""


def main(words: Sequence[str]) -> int:
    """Do what the arguments say, and return the exit code; 2 when they make no sense."""
    parser = argparse.ArgumentParser("train", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"train {__version__}")
    parser.add_argument(
        "--check", action="store_true", help="say what this container sees, and what to do about problems; exit 0 or 1"
    )
    parser.add_argument("--json", action="store_true", help="with --check: one JSON object instead of a table")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="with --check: how long to wait for the other hosts (default: SHOAL_JOIN_TIMEOUT, else 60)",
    )
    try:
        options = parser.parse_args(words)
        if not options.check:
            parser.error("a job takes no arguments; --json and --timeout go with --check")
    except SystemExit as end:  # argparse has said why
        return int(end.code or 0)
    from shoal_entrypoint.check import command

    return command.run(options.json, options.timeout)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds above 0 was expected")
    return value
