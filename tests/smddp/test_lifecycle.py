"""Groups can be made, destroyed and made again; forks and hasty exits do no harm; no shared memory is left behind."""

from __future__ import annotations

from pathlib import Path

from rank_jobs import run_ranks


def test_make_destroy_fork_and_leave(tmp_path: Path) -> None:
    for result in run_ranks("lifecycle", 2, str(tmp_path)):
        assert result.report["refused"]
        assert result.report["leftovers"] == []
        assert result.report["local_rank"] == str(result.rank)
