"""The verb's own errors: one line each, before anything is served."""

import importlib.util
import os
import socket
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from endpoint import Endpoint

from shoal.cli import app
from shoal.errors import ShoalError


def refused(*options: str) -> str:
    # The verb sets variables for its runs, and this process goes on after it.
    with mock.patch.dict(os.environ), pytest.raises(ShoalError) as error:
        app(["serve", *options], standalone_mode=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flask_cors" else real(name))
    assert refused() == "serve: needs flask_cors: pip install 'shoal[serve]'"


def test_a_host_that_is_no_address_is_refused() -> None:
    assert refused("--host", "here").startswith("--host 'here': is no address")


@pytest.mark.engine
def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--port", str(port), "--state", str(tmp_path / "state"))
    assert said.startswith(f"serve: cannot listen on 127.0.0.1 port {port}: ")


@pytest.mark.engine
def test_a_state_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_text("no database, but long enough to be taken for one" * 50)
    assert refused("--port", "0", "--state", str(tmp_path)).startswith(f"serve: {tmp_path}/jobs.sqlite: ")
    (tmp_path / "file").write_text("")
    assert refused("--state", str(tmp_path / "file" / "x")).startswith(f"--state {tmp_path}/file/x: Not a directory")


@pytest.mark.engine
def test_a_state_belongs_to_one_server(start: Callable[..., Endpoint]) -> None:
    state = start().state
    assert refused("--state", str(state)) == f"--state {state}: another shoal serve uses it: give another folder"
