"""What all tests need."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Take interrupts: a shell ignores them in what runs in the background, and what the tests start inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which image tests/images is about. Here, because pytest reads options from no deeper folder's conftest."""
    group = parser.getgroup("tests of images")
    group.addoption("--row", default="2.13-cpu", help="row of versions.yaml whose image is tested")
    group.addoption("--flavour", default="sagemaker", choices=("sagemaker", "ec2"), help="flavour of that image")
    group.addoption("--image", help="test this image of the engine instead of the one that today's sources make")
