"""The stages of `make test` and `make test-jobs`, with programs that only say they were called: what runs, and when."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SAY = '#!/bin/sh\necho "$(basename "$0") $*" >>"{log}"\n'
BENCHMARKS = ("tests/benchmarks/test_images.py", "tests/benchmarks/test_jobs.py")
FOLDERS = ("tests/images", "tests/shoal", "tests/e2e", "tests/sdk", *BENCHMARKS)
# The runs of pytest: model parallelism, what needs the engine, `train`, and all the rest.
OPTIONS = "-q --durations=10 --override-ini=cache_dir=.shoal/pytest"
SMP = f"pytest {OPTIONS}-smp tests/modelparallel"
ENGINE = f"pytest {OPTIONS}-engine {' '.join(FOLDERS)}"
TRAIN = f"pytest {OPTIONS}-train tests/entrypoint"
ELSEWHERE = ("tests/modelparallel", "tests/entrypoint", *FOLDERS)
OTHERS = f"pytest {OPTIONS}-others {' '.join(f'--ignore={folder}' for folder in ELSEWHERE)}"
PYTESTS = [SMP, ENGINE, TRAIN, OTHERS]


class Clone:
    """A folder with the scripts, and programs that write down that they were called."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "called"
        (root / "scripts").mkdir()
        (root / ".venv/bin").mkdir(parents=True)
        for name in ("test.sh", "test-jobs.sh", "lib.sh"):
            shutil.copy(SCRIPTS / name, root / "scripts")
        for name in ("venv.sh", "engine.sh", "lint.sh", "test-core.sh"):
            self.program(f"scripts/{name}")
        for name in ("make", "pip", "shoal", "pytest"):
            self.program(f".venv/bin/{name}")

    def program(self, path: str, then: str = "") -> None:
        """Make a program that is called and does `then`."""
        (self.root / path).write_text(SAY.format(log=self.log) + then + "\n")
        (self.root / path).chmod(0o755)

    def start(self, script: str = "test.sh") -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([self.root / "scripts" / script], stdout=pipe, stderr=pipe, text=True)

    @property
    def called(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def until_called(self, line: str) -> None:
        deadline = time.monotonic() + 60
        while line not in self.called:
            assert time.monotonic() < deadline, self.called
            time.sleep(0.02)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_tests_begin_when_the_image_is_there(clone: Clone) -> None:
    clone.program(".venv/bin/shoal", f"sleep 1; echo image >>{clone.log}")
    process = clone.start()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    called = clone.called
    assert set(called) >= {"shoal build 2.13-cpu", "lint.sh ", "test-core.sh ", "image", *PYTESTS}
    assert max(map(called.index, ("image", SMP))) < called.index(ENGINE) < called.index(TRAIN)
    assert called.index("lint.sh ") < called.index("test-core.sh ") < called.index(OTHERS)
    assert called.index("lint.sh ") < called.index("image"), "they must not wait for one another"
    assert called[-1] == "engine.sh stop"


@pytest.mark.parametrize("failing", ["scripts/lint.sh", "scripts/test-core.sh", ".venv/bin/pytest"])
def test_one_that_fails_fails_all_at_the_end(clone: Clone, failing: str) -> None:
    clone.program(failing, "exit 1")
    process = clone.start()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert set(PYTESTS) <= set(clone.called)
    assert err.count("] failed: ") == (len(PYTESTS) if "pytest" in failing else 1)


@pytest.mark.parametrize("name", ["engine", "others", "smp", "train"])
def test_any_run_s_failure_counts_and_is_shown_again_at_the_end(clone: Clone, name: str) -> None:
    clone.program(".venv/bin/pytest", f"case $* in *pytest-{name}*) echo 1 failed; exit 1;; *) echo passed;; esac")
    process = clone.start()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.count("1 failed")) == (1, 2)
    assert out.endswith("1 failed\n")
    assert f"failed: {name}; .shoal/test-{name}.log ends with" in err


def test_without_the_image_what_needs_none_is_tested(clone: Clone) -> None:
    clone.program(".venv/bin/shoal", "echo 'shoal: no such wheel' >&2; exit 3")
    process = clone.start()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "shoal: no such wheel" in out
    assert {SMP, TRAIN, OTHERS} <= set(clone.called)
    assert ENGINE not in clone.called
    assert err.count("] failed: ") == 1
    assert clone.called[-1] == "engine.sh stop"


@pytest.mark.parametrize("answers", [0, 1])
def test_an_image_is_built_again_only_where_the_engine_ended(clone: Clone, answers: int) -> None:
    clone.program("scripts/engine.sh", f"case $1 in answers) exit {answers} ;; esac")
    clone.program(".venv/bin/shoal", f"[ $(grep -c '^shoal ' {clone.log}) = 2 ] || {{ echo unexpected EOF; exit 1; }}")
    process = clone.start()
    out, err = process.communicate(timeout=60)
    assert "unexpected EOF" in out + err
    assert process.returncode == (1 if answers == 0 else 0), err
    assert clone.called.count("engine.sh start") == (1 if answers == 0 else 2)
    assert (ENGINE in clone.called) == (answers != 0)


@pytest.mark.parametrize(("program", "call"), [("shoal", "shoal build 2.13-cpu"), ("pytest", SMP)])
def test_who_is_stopped_stops_what_goes_beside(clone: Clone, program: str, call: str) -> None:
    wait = f"trap 'echo stopped >>{clone.log}; exit 130' TERM; while :; do sleep 0.05; done"
    clone.program(f".venv/bin/{program}", f"case $* in *pytest-others*) exit;; esac; {wait}")
    process = clone.start()
    clone.until_called(call)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    clone.until_called("stopped")
    assert "engine.sh stop" in clone.called


@pytest.mark.parametrize("code", [0, 1])
def test_the_tests_of_jobs_run_where_their_folders_are(clone: Clone, code: int) -> None:
    for folder in ("tests/shoal/job", "tests/shoal/image", "tests/e2e"):
        (clone.root / folder).mkdir(parents=True)
    clone.program(".venv/bin/pytest", f"exit {code}")
    process = clone.start("test-jobs.sh")
    process.communicate(timeout=60)
    assert process.returncode == code
    tests = "pytest -q --durations=10 tests/shoal/job tests/e2e"
    assert clone.called == ["venv.sh ", "engine.sh start", "shoal build 2.13-cpu", tests, "engine.sh stop"]


def test_without_the_image_no_job_is_tested(clone: Clone) -> None:
    clone.program(".venv/bin/shoal", "exit 3")
    process = clone.start("test-jobs.sh")
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert clone.called == ["venv.sh ", "engine.sh start", "shoal build 2.13-cpu", "engine.sh stop"]
