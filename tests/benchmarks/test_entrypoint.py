"""What `benchmarks/entrypoint.py` measures, with this tree's `train` alone: installing the toolkit takes a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.build import UnavailableError
from harness.train_commands import OURS, THEIRS, Command
from harness.train_hosts import run_two, two_hosts
from harness.train_jobs import FIRST_LINE, LINES, Ran, run_job, write_job

from entrypoint import claims, figures, in_turns, table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def train(tmp_path: Path) -> Command:
    """This tree's command, as an environment would have it."""
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python3").symlink_to(sys.executable)
    script = environment / "bin" / "train"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT / 'entrypoint' / 'src')!r})\n"
        "from shoal_entrypoint.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return Command(OURS, environment, "this tree", {})


def test_times_and_memory_of_a_job_are_of_that_job(train: Command, tmp_path: Path) -> None:
    base = tmp_path / "ml"
    write_job(base, FIRST_LINE, {}, ["localhost"], "localhost")
    ran = run_job(train, base, with_torch=False)
    assert 0 < ran.to_first_line < ran.whole
    assert ran.to_first_line + ran.between + ran.after_last_line == pytest.approx(ran.whole)
    assert 5_000 < ran.peak_kib < 100_000


def test_every_byte_of_the_log_is_counted_and_arrives(train: Command, tmp_path: Path) -> None:
    base = tmp_path / "ml"
    write_job(base, LINES.format(count=20, above=0), {}, ["localhost"], "localhost")
    ran = run_job(train, base, with_torch=False)
    assert ran.written == 20 * 64_000 == (base / "out").stat().st_size
    assert ran.between > 0


def test_a_job_that_fails_is_no_measurement(train: Command, tmp_path: Path) -> None:
    base = tmp_path / "ml"
    write_job(base, "raise SystemExit('no such data')", {}, ["localhost"], "localhost")
    with pytest.raises(UnavailableError, match=r"train ended with 1: .*no such data"):
        run_job(train, base, with_torch=False)


@pytest.mark.usefixtures("_hosts")
def test_two_hosts_run_one_job(train: Command) -> None:
    with two_hosts() as (folder, hosts):
        ran = run_two(train, folder, hosts)
    assert 0 < ran.to_first_line < ran.whole
    assert ran.after_last_line > 0


def test_sides_take_turns_in_both_orders() -> None:
    sides = [Command(OURS, Path("a"), "", {}), Command(THEIRS, Path("b"), "", {})]
    order: list[str] = []

    def run(side: Command) -> Ran:
        order.append(side.name)
        return Ran(1, 1, 1, 3, 1000, 0)

    times = in_turns(sides, 2, run, warm_up=1)
    assert order == [THEIRS, OURS, OURS, THEIRS, THEIRS, OURS]
    assert {name: len(ran) for name, ran in times.items()} == {OURS: 2, THEIRS: 2}


def test_claims_are_read_from_medians_of_our_side() -> None:
    def ran(first: float, kib: int) -> Ran:
        return Ran(first, 0.1, 1.0, 2.0, kib, 0)

    times = {OURS: [ran(0.04, 15_000), ran(0.05, 15_000), ran(9.0, 15_000)], THEIRS: [ran(0.5, 60_000)]}
    rows = figures("start", {"without torch": times})
    assert [row["toolkit_over_train"] for row in rows] == [10.0, 1.0, 4.0]
    assert rows[0]["max"][OURS] == 9.0
    verdicts = {claim["what"]: claim["holds"] for claim in claims(rows)}
    assert verdicts == {"to the first line, without torch": True, "peak memory, without torch": True}
    slow = figures("start", {"with torch": {OURS: [ran(0.11, 30_000)], THEIRS: [ran(1.0, 60_000)]}})
    assert [claim["holds"] for claim in claims(slow)] == [False, False]
    assert "DOES NOT HOLD: peak memory, with torch: 30.72 MB (target <= 20)" in table(slow, claims(slow))


def test_an_unknown_part_is_refused_in_one_line() -> None:
    argv = [sys.executable, str(ROOT / "benchmarks" / "entrypoint.py"), "--part", "start,stop"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--part: 'stop' is none of start, log, end, hosts")
