"""Lightning's DDPStrategy with `process_group_backend="smddp"` and the published environment (statements A1, A2)."""

from __future__ import annotations

import functools

import pytest
from rank_jobs import Rank, run_ranks

# As for native DDP: the order of a sum of four numbers shows in its last bit, and Adam carries it on.
TOLERANCE = 1e-5


def fit(backend: str, ranks: int, hosts: str = "") -> list[Rank]:
    return run_ranks("lightning_fit", ranks, backend, hosts=hosts, imports=["lightning.pytorch"])


@functools.cache
def with_gloo(ranks: int) -> list[Rank]:
    return fit("gloo", ranks)


@pytest.mark.parametrize(("hosts", "steps"), [("aa", 24), ("aaaa", 12), ("aabb", 12)])
def test_same_weights_as_gloo(hosts: str, steps: int) -> None:
    ours = fit("smddp", len(hosts), hosts)
    gloo = with_gloo(len(hosts))
    assert {result.report["backend"] for result in ours} == {"smddp"}
    assert {result.report["backend"] for result in gloo} == {"gloo"}
    assert {result.report["steps"] for result in ours + gloo} == {steps}
    weights, reference = ours[0].report["weights"], gloo[0].report["weights"]
    assert all(result.report["weights"] == weights for result in ours), "ranks must end with the same bits"
    difference = max(abs(a - b) for a, b in zip(weights, reference, strict=True))
    # With two ranks there is only one sum: a + b is b + a.
    assert difference == 0.0 if len(hosts) == 2 else difference < TOLERANCE
