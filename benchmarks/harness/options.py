"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from harness.stored import appendable


class Named(Protocol):
    """Something that is chosen by its name."""

    @property
    def name(self) -> str:
        """As the user writes it."""


N = TypeVar("N", bound=Named)


def default_cache() -> Path:
    """Where compiled and installed things are kept, unless the user says otherwise."""
    return Path(__file__).resolve().parents[1] / ".cache"


def add_common(
    parser: argparse.ArgumentParser, peers: Sequence[Named], *, rounds: str, quick: str, output: str
) -> None:
    """Add the options that all of them have; the texts say what each benchmark does."""
    add = parser.add_argument
    add("--peers", help=f"libraries beside smddp (default: all): {', '.join(peer.name for peer in peers)}")
    add("--rounds", type=int, help=f"{rounds} (default: 5)")
    add_wait(parser)
    add("--quick", action="store_true", help=quick)
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of smddp (SMDDP_...), repeatable")
    add("--json", action="store_true", help="only the JSON line on stdout, no tables")
    add("--output", type=appendable, help=output)
    add("--cache", type=absolute, default=default_cache(), help="folder for what is compiled")


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add --wait: tests, which want no figures, take 0."""
    text = "a round waits at most so long for others to leave the machine alone (default: %(default)s)"
    parser.add_argument("--wait", type=_seconds, default=15.0, metavar="SECONDS", help=text)


def absolute(text: str) -> Path:
    """For --cache: what is started on a host does not begin in this program's folder."""
    return Path(text).absolute()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0")
    return seconds


def rounds_of(options: argparse.Namespace) -> int:
    """How many rounds to measure.

    Raises:
        ValueError: less than one.
    """
    rounds = 2 if options.quick else 5
    if options.rounds is not None:
        rounds = int(options.rounds)
    if rounds < 1:
        raise ValueError(f"--rounds: {rounds} is less than 1")
    return rounds


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """The settings of smddp by their variables.

    Raises:
        ValueError: one is not SMDDP_NAME=VALUE.
    """
    for text in options.set:
        if not text.startswith("SMDDP_") or "=" not in text:
            raise ValueError(f"--set: {text!r} is not SMDDP_NAME=VALUE")
    return dict(text.split("=", 1) for text in options.set)


def peers_of(options: argparse.Namespace, known: Sequence[N]) -> list[N]:
    """The libraries that were asked for, in the fixed order; smddp is always one of them.

    Raises:
        ValueError: no such library.
    """
    if not options.peers:
        return list(known)
    names = options.peers.split(",")
    known_names = [peer.name for peer in known]
    for name in names:
        if name not in known_names:
            raise ValueError(f"--peers: {name!r} is none of {', '.join(known_names)}")
    return [peer for peer in known if peer.name in names or peer.name == "smddp"]
