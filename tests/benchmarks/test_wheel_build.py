"""What `benchmarks/wheel_build.py` does beside compiling, which `make smddp` does anyway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from wheel_build import OURS, BuildError, Built, sources, summary

ROOT = Path(__file__).resolve().parents[2]


def test_bad_options_are_refused_in_one_line() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "wheel_build.py"), "--rounds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("--rounds: 0 is less than 1")


def test_sources_of_a_commit_and_of_this_tree(tmp_path: Path) -> None:
    for name, commit in (("then", "HEAD"), ("now", None)):
        (tmp_path / name).mkdir()
        sources(commit, tmp_path / name)
        assert (tmp_path / name / "smddp_core" / "CMakeLists.txt").exists()
        assert not (tmp_path / name / "smddp_core" / "build").exists()


def test_a_commit_that_git_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"--against no-such: .*no-such"):
        sources("no-such", tmp_path)


def test_ratio_is_of_wheels_of_one_round() -> None:
    ours = [Built(50.0, 90.0, 800), Built(100.0, 180.0, 800), Built(60.0, 110.0, 800)]
    theirs = [Built(100.0, 200.0, 1200), Built(250.0, 500.0, 1200), Built(120.0, 240.0, 1200)]
    line = json.loads(json.dumps(summary({OURS: ours, "abc": theirs}, [0.7, 0.7])))
    assert line["ratio"] == 2.0
    assert line["trees"]["abc"]["seconds"] == 120.0
    claim = line["claims"][0]
    assert (claim["measured"], claim["holds"]) == (60.0, True)
    slower = summary({OURS: [Built(60.1, 110.0, 800)]}, [0.7])
    assert not slower["claims"][0]["holds"]
    assert "ratio" not in slower
