"""Logs of a job's hosts on stdout, each line behind its host's name, as `shoal run` prints them."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shoal import console
from shoal.job.logs import Printer, follow

Source = Callable[[], Iterable[bytes]]


def show(sources: Mapping[str, Source], *, live: bool) -> None:
    """Print what each host wrote: one host after the other, or all at once, as it comes.

    Raises:
        ShoalError: a log cannot be read.
    """
    if not sources:
        return
    printer = Printer(console.out, list(sources))
    failed: list[Exception] = []

    def copy(host: str, source: Source) -> None:
        try:
            follow(host, source(), Path(os.devnull), printer)
        except Exception as error:
            if not live:
                raise
            failed.append(error)

    if not live:
        for host, source in sources.items():
            copy(host, source)
        return
    threads = [threading.Thread(target=copy, args=item, daemon=True) for item in sources.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
