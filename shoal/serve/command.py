"""The verb `shoal serve`: checks what it is given, starts the endpoint, ends it on a signal."""

import contextlib
import fcntl
import importlib.util
import ipaddress
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from shoal import console, engine
from shoal.errors import ShoalError
from shoal.job.progress import Progress

_PACKAGES = ("moto", "flask", "flask_cors")
_SETTINGS = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "shoal", "AWS_SECRET_ACCESS_KEY": "shoal"}


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 4570,
    state: Annotated[Path, typer.Option(help="Where jobs, logs and objects are kept.", metavar="FOLDER")] = Path(
        ".shoal/serve"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="How many jobs run at once; the others wait.")] = 1,
) -> None:
    """Answer the SageMaker API for training jobs on this machine, and run them with `shoal run`."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ShoalError(f"serve: needs {', '.join(missing)}: pip install 'shoal[serve]'", exit_code=3)
    address = _address(host)
    engine.connect().close()
    progress = Progress(console.err)
    # The server and its runs are clients of its S3 themselves, and nobody else's.
    os.environ.update(_SETTINGS)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        os.environ.pop(name, None)
    # moto reads these when it is imported.
    os.environ["MOTO_ACCOUNT_ID"] = "123456789012"  # one account, whatever keys the clients have
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"  # it would invite every web page to ask
    from shoal.serve.running import run  # imported here: moto and Flask take a second

    state = state.absolute()
    with _alone(state), _signals() as ended:
        try:
            run(host, port, state, jobs, progress, _SETTINGS, ended, open_to_all=not address.is_loopback)
        except (OSError, sqlite3.Error) as error:
            raise ShoalError(f"serve: {_why(error, host, port, state)}", exit_code=3) from error


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError as error:
        raise ShoalError(
            f"--host {host!r}: is no address: give one of this machine, such as 127.0.0.1 or 0.0.0.0"
        ) from error


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Make the state folder, and hold it against another server; the lock ends with the process, however it ends."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / "lock").open("w")
    except OSError as error:
        raise ShoalError(f"--state {state}: {error.strerror}: give a folder that you can write") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ShoalError(f"--state {state}: another shoal serve uses it: give another folder") from error
        yield


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    ended = threading.Event()
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda _number, _frame: ended.set()) for number in wanted}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _why(error: Exception, host: str, port: int, state: Path) -> str:
    if isinstance(error, sqlite3.Error):
        return f"{state / 'jobs.sqlite'}: {error}"
    if isinstance(error, OSError) and error.filename is None:
        return f"cannot listen on {host} port {port}: {error.strerror}: give another --port (0: any that is free)"
    return str(error)
