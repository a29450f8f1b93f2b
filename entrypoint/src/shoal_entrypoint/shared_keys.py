"""Keys for programs that log in at the job's other hosts by themselves: `python -m shoal_entrypoint.shared_keys`.

SageMaker's newer SDK brings its own drivers, which do not use `train`: its MPI driver starts a bare `sshd -D` on every
host and logs in from each to the first and back, with whatever key the user has. Images used to bring one private key
for that, the same in all of them. Here every host makes its own pair and its own host key, and the hosts tell each
other the public halves over the control channel, with the job secret if there is one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Mapping

from shoal_entrypoint import control, network, ssh
from shoal_entrypoint.configuration import Resource, find_resource
from shoal_entrypoint.outcome import SUCCESS, JobError
from shoal_entrypoint.paths import Paths
from shoal_entrypoint.supervise import Supervisor

__all__ = ["main", "share"]

_STOP_GRACE_SECONDS = 5.0


def main() -> int:
    """Share this host's keys with the job's other hosts. Returns the exit code."""
    try:
        paths = Paths.from_environment(os.environ)
        resource = find_resource(paths.config, os.environ, save=False)
        share(resource, Path.home() / ".ssh", Path("/etc/ssh"))
    except JobError as error:
        print(f"sshd: {error.outcome.failure}", file=sys.stderr)
        return error.outcome.exit_code
    except OSError as error:
        print(f"sshd: the job's keys cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


def share(resource: Resource, home: Path, server: Path) -> None:
    """Make the keys, exchange them, and write what ssh, sshd and paramiko read: `home` is ~/.ssh, `server` /etc/ssh.

    Raises:
        JobError: a host did not come, or sent no key.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    card: dict[str, object] = {"ssh_host_key": ssh.make_key(server / "ssh_host_ed25519_key")}
    own = home / "id_ed25519"
    # A key that somebody has put there is what he wants to be used.
    there = own.exists() and own.with_suffix(".pub").exists()
    card["ssh_key"] = own.with_suffix(".pub").read_text().strip() if there else ssh.make_key(own)
    supervisor = Supervisor(_STOP_GRACE_SECONDS)
    channel = control.join(resource, supervisor)
    cards = channel.exchange(card)
    _append(home / "authorized_keys", _authorized(cards))
    _append(home / "known_hosts", _known(cards))
    outcome = channel.settle(SUCCESS)
    channel.leave()
    if outcome.failed:
        raise JobError(outcome.failure or "", outcome.exit_code)


def _authorized(cards: Mapping[str, Mapping[str, object]]) -> list[str]:
    lines = []
    for host, card in cards.items():
        addresses = network.addresses(host)
        origin = f'from="{",".join(addresses)}",' if addresses else ""
        lines.append(f"{origin}restrict {ssh.public_key(card, 'ssh_key', host)}")
    return lines


def _known(cards: Mapping[str, Mapping[str, object]]) -> list[str]:
    return [f"{host} {ssh.public_key(card, 'ssh_host_key', host)}" for host, card in cards.items()]


def _append(path: Path, lines: list[str]) -> None:
    before = path.read_text() if path.exists() else ""
    ssh.write_private(path, before + "".join(line + "\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
