"""A host's servers and workers, side by side. The job is done when every worker of every host is; then servers end.

A server that waits for the workers (rpc.shutdown()) ends by itself; one that serves forever gets SIGTERM.
"""

from __future__ import annotations

import signal
from typing import Callable, Mapping

from shoal_entrypoint import processes
from shoal_entrypoint.configuration import number
from shoal_entrypoint.control import Alone
from shoal_entrypoint.control.leader import Leader
from shoal_entrypoint.control.worker import Worker
from shoal_entrypoint.launchers.parameter_server import Member
from shoal_entrypoint.log import log
from shoal_entrypoint.log_prefix import Tagged
from shoal_entrypoint.relay import Output
from shoal_entrypoint.supervise import Finished, Supervisor
from shoal_entrypoint.tagging import Lines

__all__ = ["Roles"]

# For what a server still does once the workers are gone, such as saving what they have learned.
_SERVER_GRACE_SECONDS = 30.0
_ENDED_AS_ASKED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)


class Roles:
    """The processes of one host."""

    def __init__(
        self,
        supervisor: Supervisor,
        channel: Alone | Leader | Worker,
        is_python: bool,
        environ: Mapping[str, str],
        prefixes: bool | None,
    ) -> None:
        self._supervisor = supervisor
        self._channel = channel
        self._is_python = is_python
        self._grace = number(environ, "SHOAL_PS_GRACE", _SERVER_GRACE_SECONDS)
        self._prefixes = prefixes  # None: where several processes share the host's output
        self._workers: dict[Member, Finished] = {}
        self._servers: dict[Member, Finished] = {}
        self._asked = False  # the servers, to end

    def run(
        self, cwd: str, commands: Mapping[Member, tuple[list[str], dict[str, str]]]
    ) -> tuple[Member, Finished] | None:
        """Run them to their end; the one that failed, if one did. In a job that fails elsewhere, none did."""
        supervisor = self._supervisor
        tagged = len(commands) > 1 if self._prefixes is None else self._prefixes
        lines = Lines()
        for member, (argv, env) in commands.items():
            output = Tagged(f"[{env['SM_CURRENT_HOST']}:{member.rank}] ", lines) if tagged else Output()
            group = self._servers if member.is_server else self._workers
            group[member] = supervisor.start(argv, cwd, env, output)
        supervisor.targets = self._targets
        self._wait(lambda: _ended(self._workers))
        if not self._over():
            self._channel.finish()
            self._wait(lambda: self._channel.all_finished or _ended(self._servers))
        if not self._over():
            self._end_servers()
        failed = self._failed()
        if failed is not None and supervisor.abort is None:
            supervisor.finish(failed[1])
            return failed  # the others end with the job
        self._wait(self._all_ended, until_over=False)
        supervisor.clean_up()
        for finished in (*self._workers.values(), *self._servers.values()):
            supervisor.finish(finished)
        return None

    def _end_servers(self) -> None:
        supervisor = self._supervisor
        if self._all_ended():
            return
        if supervisor.stop is None:
            log(f"every worker has ended; up to {self._grace:.0f} s (SHOAL_PS_GRACE) for servers, then SIGTERM")
        self._wait(lambda: _ended(self._servers) or supervisor.stop is not None, self._grace)
        if self._over() or self._all_ended():
            return
        self._asked = True
        processes.send(self._below(self._servers), signal.SIGTERM)
        if not self._wait(lambda: _ended(self._servers), supervisor.stop_grace):
            log(f"servers did not end within {supervisor.stop_grace:.0f} s of SIGTERM: killed")
            processes.send(self._below(self._servers), signal.SIGKILL)
            self._wait(lambda: _ended(self._servers))

    def _wait(self, done: Callable[[], bool], timeout: float | None = None, until_over: bool = True) -> bool:
        return self._supervisor.wait(lambda: done() or (until_over and self._over()), timeout)

    def _over(self) -> bool:
        """Whether there is nothing to wait for any more: the job has failed here or elsewhere."""
        return self._supervisor.abort is not None or self._failed() is not None

    def _failed(self) -> tuple[Member, Finished] | None:
        for member, finished in self._workers.items():
            if finished.returncode not in (None, 0):
                return member, finished
        for member, finished in self._servers.items():
            if finished.returncode is not None and finished.returncode not in (
                _ENDED_AS_ASKED if self._asked else (0,)
            ):
                return member, finished
        return None

    def _all_ended(self) -> bool:
        return _ended(self._workers) and _ended(self._servers)

    def _targets(self) -> list[int]:
        """Workers alone in a job that is stopped: they may need the servers to save. All in one that has failed."""
        if self._supervisor.abort is None:
            return self._below(self._workers)
        return self._below(self._workers) + self._below(self._servers)

    def _below(self, group: Mapping[Member, Finished]) -> list[int]:
        """Their processes: a Python alone, because its helpers would die under its hands; all of anything else."""
        pids = [finished.pid for finished in group.values() if finished.returncode is None]
        return pids if self._is_python else pids + [below for pid in pids for below in processes.descendants(pid)]


def _ended(group: Mapping[Member, Finished]) -> bool:
    return all(finished.returncode is not None for finished in group.values())
