"""Runs PyTorch's own DistributedTest suite on gloo and on smddp: what passes on gloo must pass on smddp.

torch_suite.py                         both back ends, 2, 3 and 4 ranks (`make torch-suite`)
torch_suite.py --backends smddp --world-sizes 2       against what gloo passed when torch_suite.json was recorded
torch_suite.py --record                writes what gloo passes to torch_suite.json

torch_suite.json also names the tests that may differ, each with the reason. Exit status 1 when another differs, or when
one of those does not any more. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE / "workers" / "torch_suite_tests.py"
RECORD = HERE / "torch_suite.json"
# A test ends after this many seconds: torch kills its ranks. The process that runs tests gets as much again for a test.
TEST_SECONDS = 120


@dataclass(frozen=True)
class Outcome:
    """What became of a test: passed, skipped or failed, and the skip's reason or the traceback."""

    test: str
    outcome: str
    seconds: float
    reason: str


@dataclass
class Run:
    """All outcomes of a back end at a world size."""

    backend: str
    world_size: int
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: float = 0

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.test] = outcome

    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome.outcome == "passed"}

    def counts(self) -> Counter[str]:
        return Counter(outcome.outcome for outcome in self.outcomes.values())


class Suite:
    """Starts processes that run tests of the suite, several at a time.

    `folder` is where the tests make temporary files, of which they leave one each.
    """

    def __init__(self, jobs: int, start_method: str, folder: str) -> None:
        self.jobs = jobs
        self.start_method = start_method
        self.folder = folder

    def names(self) -> list[str]:
        command = self._command("gloo", 2)
        found = subprocess.run(command, env=self._environment(), check=True, text=True, stdout=subprocess.PIPE)
        return [str(name) for name in json.loads(found.stdout.splitlines()[-1])]

    def run(self, backend: str, world_size: int, names: Sequence[str]) -> Run:
        run = Run(backend, world_size)
        began = time.monotonic()
        # Interleaved, for neighbours take alike long.
        shares = [names[job :: self.jobs] for job in range(self.jobs)]
        with progress(run, len(names)), ThreadPoolExecutor(self.jobs) as pool:
            for done in [pool.submit(self._run_share, run, share) for share in shares if share]:
                done.result()
        run.seconds = time.monotonic() - began
        return run

    def _run_share(self, run: Run, names: Sequence[str]) -> None:
        """Runs `names` one after another; a process that ends before them is replaced by another for the rest."""
        left = list(names)
        while left:
            ended = self._run_process(run, left)
            left = [name for name in left if name not in run.outcomes]
            if left:
                run.add(Outcome(left.pop(0), "failed", 0, f"the process that ran it ended with status {ended}"))

    def _run_process(self, run: Run, names: Sequence[str]) -> int:
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [*self._command(run.backend, run.world_size), *names],
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            watchdog = Watchdog(process)
            assert process.stdout is not None
            for line in process.stdout:
                watchdog.feed()
                if line.startswith('{"test"'):
                    run.add(Outcome(**json.loads(line)))
            watchdog.stop()
            return process.wait()

    def _command(self, backend: str, world_size: int) -> list[str]:
        return [sys.executable, str(TESTS), backend, str(world_size), self.start_method]

    def _environment(self) -> dict[str, str]:
        # One thread a rank: as many as cores for each rank of each of several tests is slower, not faster.
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_SECONDS),
            "PYTHONWARNINGS": "ignore",
            "TMPDIR": self.folder,
        }


class Watchdog:
    """Kills a process that has said nothing for longer than a test may take."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.feed()

    def feed(self) -> None:
        self.stop()
        self._timer = threading.Timer(2 * TEST_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        if hasattr(self, "_timer"):
            self._timer.cancel()


@contextmanager
def progress(run: Run, count: int) -> Iterator[None]:
    """A line on stderr that says how far a run is: rewritten on a terminal, else a new one every ten seconds."""
    began = time.monotonic()
    stop = threading.Event()
    terminal = sys.stderr.isatty()

    def show() -> None:
        shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(run.counts().items()))
        line = f"[{time.monotonic() - began:4.0f} s] {run.backend}, {run.world_size} ranks: "
        line += f"{len(run.outcomes)}/{count} tests: {shown}"
        print(f"\r{line}\033[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def keep_showing() -> None:
        while not stop.wait(1 if terminal else 10):
            show()

    thread = threading.Thread(target=keep_showing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        show()
        if terminal:
            print(file=sys.stderr)


@dataclass(frozen=True)
class Record:
    """torch_suite.json."""

    torch: str
    passes_on_gloo: dict[str, list[str]]  # by world size
    differences: dict[str, str]  # test: why smddp need not pass it

    @classmethod
    def read(cls) -> Record:
        return cls(**json.loads(RECORD.read_text()))

    def write(self) -> None:
        RECORD.write_text(json.dumps(asdict(self), indent=1) + "\n")


def compare(gloo: set[str], smddp: Run, allowed: set[str]) -> dict[str, list[str]]:
    """Tests that pass on gloo only and are not allowed to, and allowed ones that pass: both must be empty."""
    passed, tried = smddp.passed(), set(smddp.outcomes)
    return {
        "fails_on_smddp": sorted((gloo & tried) - passed - allowed),
        "differs_no_more": sorted(passed & allowed),
    }


def repeat_failures(suite: Suite, run: Run, expected: set[str]) -> list[str]:
    """Runs what should have passed once more, alone; returns what passes now: it depends on the machine's load."""
    again = sorted(expected - run.passed())
    if not again:
        return []
    second = Suite(1, suite.start_method, suite.folder).run(run.backend, run.world_size, again)
    for name in second.passed():
        run.add(second.outcomes[name])
    return sorted(second.passed())


def table(runs: Sequence[Run]) -> str:
    lines = [f"{'back end':10} {'ranks':>5} {'passed':>7} {'skipped':>8} {'failed':>7} {'minutes':>8}"]
    for run in runs:
        counts = run.counts()
        lines.append(
            f"{run.backend:10} {run.world_size:5} {counts['passed']:7} {counts['skipped']:8} {counts['failed']:7} "
            f"{run.seconds / 60:8.1f}"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["gloo", "smddp"], choices=["gloo", "smddp"])
    parser.add_argument("--world-sizes", nargs="+", type=int, default=[2, 3, 4], metavar="RANKS")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="only these")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--start-method", default="fork", choices=["fork", "spawn"], help="of the ranks (fork)")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}; needs gloo among the back ends")
    parser.add_argument("--verbose", action="store_true", help="print the tracebacks of failures")
    return parser.parse_args()


@dataclass
class Results:
    """Everything that was run, and what became of the comparison."""

    runs: list[Run] = field(default_factory=list)
    verdicts: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    passed_at_second_try: list[str] = field(default_factory=list)

    def differ(self) -> bool:
        return any(tests for verdict in self.verdicts.values() for tests in verdict.values())

    def run(self, suite: Suite, backend: str, world_size: int, names: Sequence[str], expected: set[str]) -> Run:
        run = suite.run(backend, world_size, names)
        self.runs.append(run)
        self.passed_at_second_try += repeat_failures(suite, run, expected & set(names))
        return run


def run_all(suite: Suite, options: argparse.Namespace, record: Record) -> Results:
    """Runs what was asked for; puts what gloo passed into `record`."""
    results = Results()
    names = options.tests or suite.names()
    allowed = set(record.differences)
    for world_size in options.world_sizes:
        expected = set(record.passes_on_gloo.get(str(world_size), []))
        if "gloo" in options.backends:
            expected = results.run(suite, "gloo", world_size, names, expected).passed()
            record.passes_on_gloo[str(world_size)] = sorted(expected)
        if "smddp" in options.backends:
            run = results.run(suite, "smddp", world_size, names, expected - allowed)
            results.verdicts[world_size] = compare(expected, run, allowed)
    return results


def report(results: Results, record: Record, verbose: bool) -> None:
    print(table(results.runs))
    for world_size, verdict in results.verdicts.items():
        for name in verdict["fails_on_smddp"]:
            print(f"{world_size} ranks: passes on gloo, fails on smddp: {name}")
        for name in verdict["differs_no_more"]:
            print(f"{world_size} ranks: passes on smddp, though {RECORD.name} says it does not: {name}")
    for run in results.runs:
        for outcome in run.outcomes.values():
            if outcome.outcome == "failed" and verbose:
                print(f"--- {run.backend}, {run.world_size} ranks: {outcome.test}\n{outcome.reason}")
    for name, reason in record.differences.items():
        print(f"allowed to differ: {name}: {reason}")
    summary = {
        "ok": not results.differ(),
        "runs": [
            {"backend": run.backend, "ranks": run.world_size, "seconds": round(run.seconds), **run.counts()}
            for run in results.runs
        ],
        "verdicts": results.verdicts,
        "passed_at_second_try": results.passed_at_second_try,
    }
    print(json.dumps(summary))


def main() -> int:
    options = arguments()
    record = Record.read() if RECORD.exists() else Record("", {}, {})
    with tempfile.TemporaryDirectory() as folder:
        results = run_all(Suite(options.jobs, options.start_method, folder), options, record)
    if options.record:
        from torch import __version__

        Record(__version__, record.passes_on_gloo, record.differences).write()
    report(results, record, options.verbose)
    return int(results.differ())


if __name__ == "__main__":
    sys.exit(main())
