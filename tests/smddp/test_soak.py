"""A short soak; `make soak` is the long one."""

from __future__ import annotations

import pytest
from run_soak import LAYOUTS, soak


@pytest.mark.parametrize(("hosts", "inside"), LAYOUTS)
def test_random_operations_on_random_groups_leave_nothing_behind(hosts: str, inside: str) -> None:
    figures = soak(hosts, operations=3000, seed=20261120, limit=200, inside=inside)
    assert int(str(figures["groups"])) > 0
