"""What all tests need."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take interrupts: a shell ignores them in what runs in the background, and what the tests start inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
