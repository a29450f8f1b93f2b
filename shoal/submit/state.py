"""How a submitted job is, in the words of DescribeTrainingJob, wherever it runs."""

from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table

from shoal import console

State = Literal["InProgress", "Completed", "Failed", "Stopping", "Stopped"]

# What `shoal status` ends with: as `shoal run` does; a job that is still in progress is no failure.
EXIT_CODES: dict[State, int] = {"InProgress": 0, "Completed": 0, "Failed": 1, "Stopping": 0, "Stopped": 130}


@dataclass(frozen=True)
class HostState:
    """One host of a job: its name there, the cluster's word for how it is, its exit code once it has ended."""

    name: str
    state: str
    node: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class JobState:
    """A job: its state, why it failed, its hosts as far as the cluster still knows them."""

    name: str
    state: State
    detail: str = ""  # the cluster's own word for it
    reason: str = ""
    hosts: tuple[HostState, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it with DescribeTrainingJob's names; hosts under "Shoal"."""
        described: dict[str, Any] = {"TrainingJobName": self.name, "TrainingJobStatus": self.state}
        if self.detail:
            described["SecondaryStatus"] = self.detail
        if self.reason:
            described["FailureReason"] = self.reason
        hosts = [{"Host": h.name, "State": h.state, "Node": h.node, "ExitCode": h.exit_code} for h in self.hosts]
        return {**described, "Shoal": {"Hosts": hosts}}

    def show(self) -> None:
        """Print it on stdout."""
        detail = f" ({self.detail})" if self.detail and self.detail != self.state else ""
        console.out.print(f"{self.name}: {self.state}{detail}", markup=False)
        if self.reason:
            console.out.print(self.reason.rstrip(), markup=False)
        if self.hosts:
            table = Table("host", "state", "exit code", "node", box=None, pad_edge=False)
            for host in self.hosts:
                table.add_row(host.name, host.state, "" if host.exit_code is None else str(host.exit_code), host.node)
            console.out.print(table)
