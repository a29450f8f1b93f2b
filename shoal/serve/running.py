"""The endpoint in its running state: store, objects, jobs and HTTP server put together, until it is told to end."""

import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

from shoal.job.objects import Objects
from shoal.job.progress import Progress
from shoal.serve.jobs import Jobs
from shoal.serve.log_events import publish
from shoal.serve.s3_objects import S3Objects
from shoal.serve.server import Endpoint
from shoal.serve.store import Store


def run(
    host: str,
    port: int,
    state: Path,
    at_once: int,
    progress: Progress,
    settings: Mapping[str, str],
    ended: threading.Event,
    *,
    open_to_all: bool,
) -> None:
    """Serve until `ended` is set. Jobs that run then go on running. `settings` are for clients, this one included.

    Raises:
        OSError: the address is not to be had.
        sqlite3.Error: the state cannot be read.
    """
    # moto would say of each error of ours that SageMaker's model does not name it: to the user, in Python's words.
    warnings.filterwarnings("ignore", module="moto.core.serialize")
    store = Store(state / "jobs.sqlite")
    for region, stream, events in store.log_streams():
        publish(region, stream, events)
    objects = S3Objects(state / "s3")
    objects.restore()
    endpoint = Endpoint(host, port, objects)
    environment = {"AWS_ENDPOINT_URL_S3": endpoint.url}
    jobs = Jobs(store, state / "jobs", at_once, Objects(Path, endpoint.url), environment)
    endpoint.give(jobs)
    endpoint.start()
    try:
        for line in jobs.resume():
            progress.note(line)
        if open_to_all:
            progress.note(f"anybody who can reach {host} can run containers on this machine: no request is checked")
        progress.stage("Listening", f"{endpoint.url}, state in {state}")
        exports = " ".join(f"{name}={value}" for name, value in settings.items())
        progress.note(f"export AWS_ENDPOINT_URL={endpoint.url} {exports}")
        ended.wait()
    finally:
        endpoint.close()
    left = [job.name for job in store.unfinished()]
    progress.stage("Ended", f"{len(left)} jobs go on, or wait for the next server: {', '.join(left)}" if left else "")
