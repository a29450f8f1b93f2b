"""Fixtures: a clone with three manifests and their page, and Debian's Chromium to look at it."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, BrowserContext, Page

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by file: they find helpers no other way
from catalogue_samples import MANIFESTS, NEW, OLD, ROW, UNBUILT, Open, Shoal, bill

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with versions.yaml (a row of ours, one long out of support) and manifests of three images."""
    folder = tmp_path_factory.mktemp("clone")
    versions = yaml.safe_load((ROOT / "versions.yaml").read_text())
    unbuilt = copy.deepcopy(versions["rows"][ROW])
    unbuilt.update(torch="2.12.99", ga="2020-01-02", eop="2021-01-02")
    unbuilt["published"] = {"python": "3.11.2", "openmpi": "4.1.7", "size_mb": 7200}
    versions["aliases"] = {"2.13.0-cpu-py311": ROW}
    versions["rows"] = {ROW: versions["rows"][ROW], UNBUILT: unbuilt}
    (folder / "versions.yaml").write_text(yaml.safe_dump(versions, sort_keys=False))
    state = folder / ".shoal"
    state.mkdir()
    for name, content in MANIFESTS.items():
        (state / f"{name}.json").write_text(json.dumps(content))
    (state / f"{ROW}.cdx.json").write_text(json.dumps(bill(NEW, "2026-11-20T10:00:00+00:00")))
    (state / "old.cdx.json").write_text(json.dumps(bill(OLD, "2026-11-10T10:00:00+00:00")))
    return folder


@pytest.fixture(scope="session")
def shoal(clone: Path) -> Shoal:
    """Return a function that runs the command in the clone."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "shoal", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=clone, env=environment)

    return run


@pytest.fixture(scope="session")
def url(clone: Path, shoal: Shoal) -> str:
    """Return the address of the page of all three images."""
    done = shoal(
        "catalogue", "--output", clone / "page.html", *(clone / ".shoal" / f"{name}.json" for name in MANIFESTS)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{clone / 'page.html'}\n"
    return (clone / "page.html").as_uri()


@pytest.fixture
def context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Return a function that makes a browser's context, as `Browser.new_context` does."""
    made: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        made.append(browser.new_context(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def opened(context: Callable[..., BrowserContext], url: str) -> Iterator[Open]:
    """Return a function that opens the page; at the end nothing may have gone wrong, run or been asked."""
    wrong: list[str] = []
    requests: list[str] = []

    def go(fragment: str = "", now: str | None = None, **options: Any) -> Page:
        page = context(**options).new_page()
        if now is not None:
            page.clock.set_fixed_time(now)
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: requests.append(request.url.partition("#")[0]))
        page.goto(url + fragment)
        return page

    yield go
    assert wrong == []
    assert {one for one in requests if not one.startswith("data:")} == {url}
