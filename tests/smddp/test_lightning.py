"""Lightning's DDPStrategy with `process_group_backend="smddp"` and the published environment (statements A1, A2)."""

from __future__ import annotations

from rank_jobs import run_ranks


def test_same_weights_as_gloo() -> None:
    ours = run_ranks("lightning_fit", 2, "smddp")
    gloo = run_ranks("lightning_fit", 2, "gloo")
    assert {result.report["backend"] for result in ours} == {"smddp"}
    assert {result.report["backend"] for result in gloo} == {"gloo"}
    assert {result.report["steps"] for result in ours + gloo} == {24}
    # Two ranks: the same bits on every rank and on both back ends.
    assert len({result.report["digest"] for result in ours + gloo}) == 1
