"""Operations happen in the order of their calls, on whichever thread they run; callbacks may call."""

from __future__ import annotations

import pytest
from rank_jobs import run_ranks


@pytest.mark.parametrize("hosts", ["aa", "aaaa", "aabb"])
def test_synchronous_and_asynchronous_calls_keep_their_order(hosts: str) -> None:
    size = len(hosts)
    results = run_ranks("ordering", size, hosts=hosts)
    assert "a callback waits for an operation that starts only when" in results[0].report["told"]
    for result in results:
        assert result.report["right"] == 3000
        assert result.report["callbacks"] == 200
        assert result.report["callback"] == size * size
        assert result.report["future"] == [3.0 * size] * 2
