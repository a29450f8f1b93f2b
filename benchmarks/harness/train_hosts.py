"""A trivial job with MPI on two hosts, which are namespaces of this machine, for either `train`."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness.build import UnavailableError
from harness.layout import Layout
from harness.network import Host, network
from harness.train_commands import Command
from harness.train_jobs import FIRST_LINE, Ran, last_words, read, write_job

_HOSTS = ["algo-1", "algo-2"]
_LIMIT_SECONDS = 240
_MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"}
# Each host's own /opt/ml, /run and names; the toolkit also wants a key pair that all hosts share, as its images have,
# and appends the environment to /etc/environment.
_PREPARE = """set -e
mount --bind {base} /opt/ml
mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs -o mode=0755 tmpfs /run && mkdir /run/sshd
mount --bind {folder}/ssh /root/.ssh
mount --bind {base}/environment /etc/environment
hostname {name}
cd /
exec "$@" """


def _keys(folder: Path) -> None:
    ssh = folder / "ssh"
    ssh.mkdir(mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", ssh / "id_rsa"], check=True)
    (ssh / "authorized_keys").write_bytes((ssh / "id_rsa.pub").read_bytes())
    (ssh / "config").write_text("Host *\n  StrictHostKeyChecking no\n")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Path, list[Host]]]:
    """A folder with what the hosts share, and the hosts.

    Raises:
        NetworkError: not root, or the kernel refuses.
    """
    for point in ("/opt/ml", "/root/.ssh"):
        Path(point).mkdir(parents=True, exist_ok=True)  # only mount points
    with tempfile.TemporaryDirectory(prefix="train-bench-") as name:
        folder = Path(name)
        _keys(folder)
        with network(Layout(2, 1, "unshaped"), folder) as net:
            lines = [f"{host.address} {name}" for host, name in zip(net.hosts, _HOSTS, strict=True)]
            (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
            try:
                yield folder, net.hosts
            finally:
                Path("/tmp/done.algo-1").unlink(missing_ok=True)  # by which the toolkit's first host ends the others


def run_two(command: Command, folder: Path, hosts: list[Host]) -> Ran:
    """Run the job once; times are those of the host that ended last.

    Raises:
        UnavailableError: it failed, or did not end.
    """
    bases = [folder / f"{command.name}-{time.monotonic_ns()}-{name}" for name in _HOSTS]
    for base, name in zip(bases, _HOSTS, strict=True):
        write_job(base, FIRST_LINE, _MPI, _HOSTS, name)
        (base / "environment").touch()
    with contextlib.ExitStack() as stack:
        began = time.monotonic_ns()
        started = [
            stack.enter_context(_start(command, host, base, folder, name))
            for host, base, name in zip(hosts, bases, _HOSTS, strict=True)
        ]
        try:
            codes = [process.wait(_LIMIT_SECONDS) for process in started]
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{command.name}: two hosts did not end in {_LIMIT_SECONDS} s") from None
        ended = time.monotonic_ns()
    if any(codes):
        raise UnavailableError(f"{command.name} ended with {codes}: {' / '.join(map(last_words, bases))}")
    ran = [read(base, began, ended) for base in bases]
    return min(ran, key=lambda one: one.after_last_line)


@contextlib.contextmanager
def _start(command: Command, host: Host, base: Path, folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    script = _PREPARE.format(base=base, folder=folder, name=name)
    argv = [*host.enter, "unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with (base / "out").open("wb") as out, (base / "err").open("wb") as err:
        env = command.env(with_torch=True)
        process = subprocess.Popen(
            [*argv, "sh", "-c", script, "sh", *command.argv], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
