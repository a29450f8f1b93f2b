"""What several folders of tests share here: Debian's Chromium."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return Debian's Chromium: playwright's own would be a download.

    One for all folders, because one process can have only one playwright at a time.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("no chromium: install the Debian package (TEST_PACKAGES in the Makefile)")
    with sync_playwright() as playwright:
        # Root has no sandbox; the page is our own.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
