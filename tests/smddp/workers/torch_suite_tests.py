"""Runs tests of PyTorch's own DistributedTest and prints one JSON line as each begins and one as it ends.

python torch_suite_tests.py BACKEND WORLD_SIZE START_METHOD [TEST ...]

Without tests it prints the names of all, and runs none.

The tests are torch's, from the installed release. For a back end other than gloo they are the tests that torch runs for
gloo, no fewer: the decorators that choose tests see "gloo", the tests themselves see the back end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from torch.distributed import monitored_barrier as torch_monitored_barrier


def suite_module(backend: str, world_size: int, folder: Path) -> ModuleType:
    """torch's module of tests, set to run `backend`."""
    # Read while the module is imported. A file is what torch's CI uses: tests that meet a second time need it.
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world_size), INIT_METHOD=f"file://{folder}/shared_init_file")
    import torch.testing._internal.distributed.distributed_test as module

    if backend != "gloo":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

        for name in ("PROFILING", "CUDA_PROFILING", "SEND_RECV_PROFILING"):
            getattr(module, f"{name}_SUPPORTED_BACKENDS").append(backend)
        tables: Any = module.DistTestCases  # type: ignore[attr-defined]
        for backends in (*tables.backend_feature.values(), *tables.skip_collective.values()):
            if "gloo" in backends:
                backends.add(backend)
    os.environ["BACKEND"] = module.BACKEND = backend
    return module


def monitored_barrier(*arguments: Any, **options: Any) -> None:
    """torch's own, which finds the back end of every group to be gloo."""
    with mock.patch("torch.distributed.distributed_c10d.get_backend", return_value="gloo"):
        torch_monitored_barrier(*arguments, **options)


def suite_class(module: ModuleType, start_method: str) -> type[unittest.TestCase]:
    """The class that torch's test_distributed_spawn.py makes, with ranks that are started by `start_method`."""
    import torch
    import torch.distributed as dist

    base: Any = module.DistributedTest._DistTestBase

    class Suite(module.TestDistBackend, base):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            # A forked rank has imported torch already: seconds less for each of hundreds of tests.
            context: Any = torch.multiprocessing.get_context(start_method)
            self._start_processes(context.Process)

        def _test_accumulate_gradients_no_sync(self, *arguments: Any, **options: Any) -> None:
            # Asks for gloo by name to choose a model on the CPU.
            with mock.patch.object(module, "BACKEND", "gloo"):
                super()._test_accumulate_gradients_no_sync(*arguments, **options)

        def run_test(self, *arguments: Any, **options: Any) -> None:
            # torch.distributed.monitored_barrier() asks for gloo by name before it calls the group's own method.
            with mock.patch.object(dist, "monitored_barrier", monitored_barrier):
                super().run_test(*arguments, **options)

    return Suite


class Reporter(unittest.TestResult):
    """Prints what becomes of each test, as it becomes known."""

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's names
        super().startTest(test)
        self.began = time.monotonic()
        self.outcome, self.reason = "passed", ""
        print(json.dumps({"begins": test.id().rpartition(".")[2]}), flush=True)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.outcome, self.reason = "skipped", reason

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.outcome, self.reason = "failed", "".join(traceback.format_exception(*err))

    addFailure = addError  # noqa: N815

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.outcome, self.reason = "skipped", "expected failure"

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        seconds = round(time.monotonic() - self.began, 2)
        name = test.id().rpartition(".")[2]
        print(
            json.dumps({"test": name, "outcome": self.outcome, "seconds": seconds, "reason": self.reason}), flush=True
        )


def main() -> None:
    backend, world_size, start_method, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        module = suite_module(backend, int(world_size), Path(folder))
        suite = suite_class(module, start_method)
        # Where spawned ranks look the class up.
        suite.__qualname__ = suite.__name__
        globals()[suite.__name__] = suite
        if not names:
            print(json.dumps(unittest.defaultTestLoader.getTestCaseNames(suite)))
            return
        reporter = Reporter()
        for name in names:
            suite(name).run(reporter)


if __name__ == "__main__":
    main()
