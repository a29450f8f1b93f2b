"""Fixtures: `shoal report` as a user runs it, and Debian's Chromium to look at its page."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[3]
Report = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def report() -> Report:
    """Return a function that runs `shoal report`."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "shoal", "report", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)

    return run


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return Debian's Chromium: playwright's own would be a download."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("no chromium: install the Debian package (TEST_PACKAGES in the Makefile)")
    with sync_playwright() as playwright:
        # Root has no sandbox; the page is our own.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
