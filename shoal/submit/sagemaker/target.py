"""`--to sagemaker`: the verbs, on a request and the service."""

import json
import time
from functools import partial
from typing import Any, get_args

from shoal.errors import ShoalError
from shoal.job.local import instance_groups
from shoal.submit import logs
from shoal.submit.sagemaker.request import prepare
from shoal.submit.sagemaker.service import Service, region
from shoal.submit.state import JobState, State
from shoal.submit.target import Submission

_BETWEEN_LOOKS_S = 2.0
_GOING_ON = ("InProgress", "Stopping")


class SageMaker:
    """The service, in the region and with the credentials that boto3 finds."""

    def dry_run(self, submission: Submission) -> str:
        """Return the request as JSON."""
        request, _upload = prepare(submission, region())
        return json.dumps(request, indent=2) + "\n"

    def submit(self, submission: Submission) -> str:
        """Upload what is on this machine and create the job."""
        service = Service()
        return service.create(*prepare(submission, region()))

    def status(self, name: str) -> JobState:
        """Return how a job is."""
        described = Service().describe(name)
        known: Any = described["TrainingJobStatus"]
        state: State = known if known in get_args(State) else "InProgress"
        return JobState(name, state, described.get("SecondaryStatus", ""), described.get("FailureReason", ""))

    def logs(self, name: str, *, follow: bool) -> None:
        """Print what its hosts wrote, as CloudWatch has it; with `follow`, from its start to its end."""
        service = Service()
        described = service.describe(name)
        hosts = sum(count for _group, _type, count in instance_groups(described))

        def over() -> bool:
            return not follow or service.describe(name)["TrainingJobStatus"] not in _GOING_ON

        streams = service.log_streams(name)
        while len(streams) < hosts and not over():
            time.sleep(_BETWEEN_LOOKS_S)
            streams = service.log_streams(name)
        logs.show({host: partial(service.read, stream, over) for host, stream in streams.items()}, live=follow)

    def stop(self, name: str, *, remove: bool) -> str:
        """Have a job stopped."""
        if remove:
            raise ShoalError("--remove: SageMaker keeps the record of every job: leave --remove out")
        service = Service()
        state = service.describe(name)["TrainingJobStatus"]
        if state not in _GOING_ON:
            return f"{name}: has ended already: {state}"
        service.stop(name)
        return f"{name}: asked to end; its scripts get SIGTERM and 120 s"
