"""How far apart the hosts' clocks are, from a few barriers.

Each host notes its clock before and after a barrier. Nobody leaves before all have entered, so every "before" precedes
every "after", on whichever hosts. If host h's clock is `offset` ahead of the first host's:

    h.before - offset <= first.after    and    first.before <= h.after - offset

that is, h.before - first.after <= offset <= h.after - first.before: NTP's bounds, over a round trip. The narrowest
bounds of all rounds are kept, and half their width is the error.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row

__all__ = ["Offset", "measure", "offset", "row"]

_ROUNDS = 4
_NOTABLE_SECONDS = 1.0
_HARMFUL_SECONDS = 300.0  # AWS refuses requests that were signed more than five minutes away from its own clock
Stamp = Sequence[float]
Cards = Mapping[str, Mapping[str, Any]]


class Offset(NamedTuple):
    """How far a clock is ahead, in seconds, give or take `error`."""

    seconds: float
    error: float


def measure(exchange: Callable[[dict[str, Any]], Cards], first: str) -> dict[str, Offset]:
    """The clocks of all hosts but the first against the first's. Every host calls it, and all get the same answer."""
    stamps: dict[str, list[Stamp]] = {}
    mine: list[float] = []
    for _ in range(_ROUNDS + 1):  # each tells the stamps of the one before it
        before = time.time()
        cards = exchange({"clock": mine})
        mine = [before, time.time()]
        for host, card in cards.items():
            stamp = card.get("clock")
            if isinstance(stamp, list) and len(stamp) == 2 and all(isinstance(each, (int, float)) for each in stamp):
                stamps.setdefault(host, []).append(stamp)
    reference = stamps.get(first, [])
    found = {host: offset(reference, theirs) for host, theirs in stamps.items() if host != first}
    return {host: each for host, each in found.items() if each is not None}


def offset(first: Sequence[Stamp], other: Sequence[Stamp]) -> Offset | None:
    """From the (before, after) stamps that two hosts took around the same barriers."""
    bounds = [(theirs[0] - ours[1], theirs[1] - ours[0]) for ours, theirs in zip(first, other)]
    if not bounds:
        return None
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    if low > high:  # a clock was set meanwhile: the bounds of one round are all that can be said
        low, high = min(bounds, key=lambda each: each[1] - each[0])
    return Offset((low + high) / 2, (high - low) / 2)


def row(found: Mapping[str, Offset], first: str) -> Row:
    """The host that is furthest off."""
    values = {
        "reference": first,
        "hosts": {
            host: {"offset_seconds": round(each.seconds, 6), "error_seconds": round(each.error, 6)}
            for host, each in found.items()
        },
    }
    if not found:
        return Row("clock", NOTE, "could not be compared", "", values)
    host = max(found, key=lambda name: abs(found[name].seconds))
    far = found[host]
    ahead = "ahead of" if far.seconds >= 0 else "behind"
    text = f"{host} is {_seconds(abs(far.seconds))} {ahead} {first} (give or take {_seconds(far.error)})"
    text = text if len(found) == 1 else f"at most: {text}"
    surely = abs(far.seconds) - far.error
    if surely >= _HARMFUL_SECONDS:
        advice = "Set the clocks (chrony, NTP): requests to S3 are refused, and certificates may not be valid yet."
        return Row("clock", PROBLEM, text, advice, values)
    if surely >= _NOTABLE_SECONDS:
        advice = (
            "Set the clocks (chrony, NTP): the hosts' logs cannot be put in order, and the newest of several"
            " checkpoints may not be the last one written."
        )
        return Row("clock", NOTE, text, advice, values)
    return Row("clock", OK, text, "", values)


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
