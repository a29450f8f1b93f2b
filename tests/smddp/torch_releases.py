"""Builds smddp's wheel against real releases of torch, and runs smddp's tests on each: one source serves them all.

torch_releases.py [RELEASE ...]     all releases by default; a row each as it is done, then one JSON line

Each release gets a virtual environment of its own with the Python of its published images if this machine has it (on
PATH or in pyenv), else with the one that runs this. It lies below --folder, 2 GB, and is removed when done. Builds of
torch for GPUs run on the CPU, with stand-ins for CUDA's libraries (gpu_stand_ins.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

import gpu_stand_ins
from rank_jobs import clean_environment
from torch_versions import PYTHON_OF, at_least, check_releases, find_python

ROOT = Path(__file__).parents[2]
CORE = ROOT / "smddp_core"
TESTS = Path(__file__).parent
# Each with the first release that has what the test is about. They run in the environment of the release; pytest and
# the judgement are this environment's.
CHECKS = {
    "test_collectives.py": "1.11",
    "test_ddp.py": "1.12",
    "test_lifecycle.py": "1.12",
    "test_legacy_api.py": "1.12",
    "test_ordering.py": "1.12",
    "test_failures.py": "1.12",
    "test_torch_api.py": "2.9",
}
# These are about the sources, a launcher, or what the core alone does: the same whatever the torch.
NOT_HERE = "not (python_3_8 or mpi or cut_off or blamed or stopped)"
# The rest of what torch asks for is for GPUs.
GPU_ONLY = re.compile(r"nvidia|cuda|triton|nvshmem")
ROW = "{:8} {:15} {:7} {:6} {:>8} {:>6} {:>9}  {}"
HEAD = ROW.format("release", "torch", "python", "c++", "build s", "cpu s", "wheel KB", "tests")


class StepError(Exception):
    """A step that went wrong, in one line."""


@dataclass
class Result:
    """What was seen of a release. `error` is empty for one that works."""

    release: str
    torch: str = ""
    python: str = ""
    standard: str = ""
    build_seconds: float = 0
    build_cpu_seconds: float = 0
    wheel_kb: int = 0
    stand_ins: list[str] = field(default_factory=list)
    passed: int = 0
    skipped: int = 0
    failed: int = 0
    error: str = ""

    def row(self) -> str:
        """For the table."""
        verdict = f"{self.passed} passed" + (f", {self.failed} failed" if self.failed else "")
        cells = (self.release, self.torch, self.python, self.standard, f"{self.build_seconds:.1f}")
        return ROW.format(*cells, f"{self.build_cpu_seconds:.1f}", self.wheel_kb, self.error or verdict)


class Environment:
    """A virtual environment for one release; what its commands say goes to `log`."""

    def __init__(self, folder: Path, interpreter: Path, log: TextIO) -> None:
        self.folder = folder
        self.log = log
        shutil.rmtree(folder, ignore_errors=True)
        self.run("make the environment", interpreter, "-m", "venv", folder)
        self.python = folder / "bin" / "python"

    def run(self, step: str, *command: str | Path) -> str:
        """Runs to the end and returns what was printed."""
        # cmake and ninja are this environment's.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**clean_environment(), "PATH": path, "PYTHONPATH": ""}
        done = subprocess.run(list(command), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.log.write(f"$ {' '.join(map(str, command))}\n{done.stdout}\n")
        self.log.flush()
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if re.search("error", line, re.IGNORECASE)]
            reason = (lines or done.stdout.splitlines() or ["no reason given"])[-1].strip()
            raise StepError(f"cannot {step}: {reason[:160]}")
        return done.stdout

    def ask(self, expression: str) -> str:
        """What Python prints for it."""
        return self.run(f"find {expression}", self.python, "-c", f"import sys; print({expression})").strip()

    def install(self, step: str, *packages: str) -> None:
        """From where pip's configuration says."""
        self.run(step, self.python, "-m", "pip", "install", "--disable-pip-version-check", *packages)

    @property
    def libraries(self) -> Path:
        """Where torch's are."""
        return next(self.folder.glob("lib/python*/site-packages/torch/lib"))


def install_torch(environment: Environment, release: str, result: Result) -> None:
    """This release ("2.5.1") or the newest patch ("2.5"), without what only GPUs need."""
    # Not into pip's cache: it would keep a gigabyte of each.
    exact = release if release.count(".") == 2 else f"{release}.*"
    environment.install("install torch", "--no-cache-dir", "--no-deps", "--only-binary=:all:", f"torch=={exact}")
    asked_for = environment.run(
        "read what torch needs",
        environment.python,
        "-c",
        "import importlib.metadata as m; print(*m.requires('torch') or [], sep='\\n')",
    )
    needed = [line for line in asked_for.splitlines() if "extra ==" not in line and not GPU_ONLY.match(line)]
    # Until 2.2 torch is compiled for NumPy 1 and cannot read NumPy 2's arrays; objects travel as such.
    environment.install("install what torch needs", *needed, "numpy" if at_least(release, "2.3") else "numpy<2")
    result.stand_ins = gpu_stand_ins.install(environment.libraries)
    result.torch = environment.ask("__import__('torch').__version__")


def standard_of_binding(compile_commands: str) -> str:
    """The core's may be an older one."""
    commands = {one["file"]: one["command"] for one in json.loads(compile_commands)}
    binding: str = next(command for file, command in commands.items() if file.endswith("torch/module.cpp"))
    standards: list[str] = re.findall(r"-std=(\S+)", binding)
    return standards[-1]


def build(environment: Environment, result: Result) -> Path:
    """The wheel, by the project's own back end, from nothing."""
    environment.install("install the build back end", "scikit-build-core>=0.11")
    build_folder, wheels = environment.folder / "build", environment.folder / "wheels"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    options = ["--no-build-isolation", "--no-deps", f"--config-settings=build-dir={build_folder}"]
    environment.run("build the wheel", environment.python, "-m", "pip", "wheel", *options, f"-w{wheels}", str(CORE))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result.build_seconds = round(time.monotonic() - began, 1)
    result.build_cpu_seconds = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    result.standard = standard_of_binding((build_folder / "compile_commands.json").read_text())
    wheel = next(wheels.glob("shoal_smddp-*.whl"))
    result.wheel_kb = wheel.stat().st_size >> 10
    return wheel


def check(environment: Environment, release: str, result: Result, tests: tuple[str, ...]) -> None:
    """smddp's own tests, their ranks in the environment."""
    files = [str(TESTS / name) for name in tests if at_least(release, CHECKS[name])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", NOT_HERE, *files]
    env = {**clean_environment(), "SMDDP_TEST_PYTHON": str(environment.python)}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    environment.log.write(done.stdout)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped|failed|error)", done.stdout)}
    result.passed, result.skipped = counts.get("passed", 0), counts.get("skipped", 0)
    result.failed = counts.get("failed", 0) + counts.get("error", 0)
    if result.failed:
        names = re.findall(r"^(?:FAILED|ERROR) \S*?(\w+\.py\S*)", done.stdout, re.MULTILINE)
        result.error = f"{result.passed} passed, {result.failed} failed: {' '.join(names)}"
    elif done.returncode or not result.passed:
        result.error = f"pytest ended with status {done.returncode}, {result.passed} passed"


def attempt(
    release: str, interpreter: Path, folder: Path, keep: bool = False, tests: tuple[str, ...] = tuple(CHECKS)
) -> Result:
    """Everything for one release."""
    result = Result(release)
    place = folder / release
    with (folder / f"{release}.log").open("w") as log:
        try:
            environment = Environment(place, interpreter, log)
            result.python = environment.ask("'%d.%d.%d' % sys.version_info[:3]")
            install_torch(environment, release, result)
            environment.install("install the wheel", "--no-deps", str(build(environment, result)))
            check(environment, release, result, tests)
        except StepError as error:
            result.error = str(error)
        finally:
            if not keep:
                shutil.rmtree(place, ignore_errors=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    default = ROOT / ".shoal" / "torch-releases"
    parser.add_argument("--folder", type=Path, default=default, help="for environments and logs (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the environments: up to 2 GB each")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    releases = check_releases(options.releases)
    options.folder.mkdir(parents=True, exist_ok=True)
    print(HEAD, flush=True)
    results = []
    for release in releases:
        interpreter = find_python(PYTHON_OF[release]) or Path(sys.executable)
        results.append(attempt(release, interpreter, options.folder, options.keep))
        print(results[-1].row(), flush=True)
    failed = [result.release for result in results if result.error]
    print(json.dumps({"ok": not failed, "failed": failed, "results": [asdict(result) for result in results]}))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
