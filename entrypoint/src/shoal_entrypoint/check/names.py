"""Do the hosts' names resolve, to what, and how long does it take?"""

from __future__ import annotations

import threading
import time
from typing import Callable, Mapping, NamedTuple, Sequence

from shoal_entrypoint import network
from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row

__all__ = ["Answer", "look_up", "row"]

_THREADS = 32
_SECONDS = 30.0
_SLOW_SECONDS = 1.0
_SHOWN = 5


class Answer(NamedTuple):
    """What a resolver said about a name. No addresses: it does not resolve."""

    addresses: list[str]
    seconds: float


def look_up(hosts: Sequence[str], wait: Callable[[Callable[[], bool], float], object]) -> dict[str, Answer]:
    """Ask for all names, several at a time. `wait(done, seconds)` keeps signals and other hosts heard meanwhile."""
    answers: dict[str, Answer] = {}
    left = list(reversed(hosts))

    def work() -> None:
        while left:
            try:
                host = left.pop()
            except IndexError:  # another thread took the last one
                return
            start = time.monotonic()
            addresses = network.addresses(host)
            answers[host] = Answer(addresses, time.monotonic() - start)

    for _ in range(min(_THREADS, len(hosts))):
        # Daemons: a resolver that never answers must not hold the check up.
        threading.Thread(target=work, daemon=True).start()
    wait(lambda: len(answers) == len(hosts), _SECONDS)
    return {host: answers.get(host, Answer([], _SECONDS)) for host in hosts}


def row(answers: Mapping[str, Answer], only_first: bool = False) -> Row:
    """All names in one row. `only_first`: the scheduler names no other host (see discovery.Found)."""
    values = {
        "hosts": {
            host: {"addresses": answer.addresses, "seconds": round(answer.seconds, 4)}
            for host, answer in answers.items()
        }
    }
    lost = [host for host, answer in answers.items() if not answer.addresses]
    if lost:
        advice = (
            "A host has a name once its container runs: start all. Else put them on one network, or into DNS or"
            " /etc/hosts."
        )
        return Row("resolved", PROBLEM, f"{_some(lost)}: not resolved", advice, values)
    longest = max(answers, key=lambda host: answers[host].seconds)
    took = answers[longest].seconds
    shown = _some([f"{host} {', '.join(answer.addresses)}" for host, answer in answers.items()])
    text = f"{shown}; {took * 1000:.1f} ms at most"
    if only_first:
        text += "; the others have no names here"
    if took > _SLOW_SECONDS:
        advice = "Every connection waits for it. Look at /etc/resolv.conf, or write the names into /etc/hosts."
        return Row("resolved", NOTE, f"{text} ({longest})", advice, values)
    return Row("resolved", OK, text, "", values)


def _some(words: list[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return "; ".join(words[:_SHOWN]) + more
