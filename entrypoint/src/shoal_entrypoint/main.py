"""`train`: run this host's part of the job, and end as the whole job ends.

The order matters: nothing below may turn a failure into exit code 0, whatever goes wrong on the way out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Callable, Sequence

from shoal_entrypoint import control, host
from shoal_entrypoint.configuration import find_resource, number
from shoal_entrypoint.failure import own_words, record
from shoal_entrypoint.outcome import SUCCESS, JobError, Outcome
from shoal_entrypoint.paths import Paths
from shoal_entrypoint.supervise import Supervisor

__all__ = ["main"]

# The platform sends SIGTERM and kills the container 120 s later: what is left is for writing the failure file.
STOP_GRACE_SECONDS = 110.0


def main(arguments: Sequence[str] | None = None) -> int:
    """`train`: a job without arguments, `sys.argv`'s if none are given here. Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        from shoal_entrypoint import arguments as command_line  # no job has any, and argparse costs milliseconds

        return command_line.main(arguments)
    return _run_job()


def _run_job() -> int:
    """Run, record, and return the exit code."""
    environ = dict(os.environ)
    paths = Paths.from_environment(environ)
    outcome, leave = SUCCESS, None
    try:
        supervisor = Supervisor(number(environ, "SHOAL_STOP_GRACE", STOP_GRACE_SECONDS))
        paths.make()
        resource = find_resource(paths.config, environ)
        channel = control.join(resource, supervisor, environ)
        leave = channel.leave
        outcome = channel.settle(_part(lambda: host.run(resource, paths, supervisor, channel, environ), paths.failure))
        supervisor.clean_up()
        supervisor.end_services()
    except BaseException as error:  # PID 1 has nobody above it to report what it did not expect
        outcome = _unexpected(error)
    exit_code = record(outcome, paths.failure, paths.success)
    if leave is not None:
        leave()
    return exit_code


def _part(run: Callable[[], Outcome], failure: Path) -> Outcome:
    try:
        outcome = run()
    except Exception as error:  # the other hosts must hear of anything
        outcome = _unexpected(error)
    return outcome._replace(failure=own_words(failure)) if outcome.failed and own_words(failure) else outcome


def _unexpected(error: BaseException) -> Outcome:
    if isinstance(error, JobError):
        return error.outcome
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Outcome(1, f"Framework Error: \n{text}{error}")
