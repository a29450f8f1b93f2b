"""SageMaker, S3 and CloudWatch by moto on loopback. Its jobs are over as soon as they are made, and it cannot stop any:
`running` lets one go on, and StopTrainingJob, which moto lacks, is answered here.
"""

import json
import threading
import time
from collections.abc import Iterable
from typing import Any

import boto3
import requests
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sagemaker.models import sagemaker_backends
from werkzeug.serving import make_server

REGION = "us-west-2"
_ACCOUNT = "123456789012"  # moto's
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_LOGS = "/aws/sagemaker/TrainingJobs"


class AwsServer:
    """`environment` is what a user of it needs."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        requests.post(f"{self.url}/moto-api/reset", timeout=30)
        self.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})

    @property
    def environment(self) -> dict[str, str]:
        return {**_KEYS, "AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            keys = {key.lower(): value for key, value in _KEYS.items()}
            self._clients[service] = boto3.client(service, endpoint_url=self.url, region_name=REGION, **keys)
        return self._clients[service]

    def job(self, name: str) -> Any:
        """moto's own object of a job."""
        return sagemaker_backends[_ACCOUNT][REGION].training_jobs[name]

    def set(self, name: str, status: str, secondary: str, reason: str | None = None) -> None:
        job = self.job(name)
        job.training_job_status, job.secondary_status, job.failure_reason = status, secondary, reason

    def log(self, stream: str, *lines: str) -> None:
        """Write lines to a job's log stream, which is made if need be."""
        logs = self.client("logs")
        for make, arguments in (
            (logs.create_log_group, {"logGroupName": _LOGS}),
            (logs.create_log_stream, {"logGroupName": _LOGS, "logStreamName": stream}),
        ):
            try:
                make(**arguments)
            except logs.exceptions.ResourceAlreadyExistsException:
                continue
        now = int(time.time() * 1000)
        events = [{"timestamp": now + i, "message": line} for i, line in enumerate(lines)]
        logs.put_log_events(logGroupName=_LOGS, logStreamName=stream, logEvents=events)

    def keys(self) -> list[str]:
        """What is in the bucket."""
        return [item["Key"] for item in self.client("s3").list_objects_v2(Bucket="bucket").get("Contents", [])]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("HTTP_X_AMZ_TARGET") == "SageMaker.StopTrainingJob":
            body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self.set(body["TrainingJobName"], "Stopped", "Stopped")
            start_response("200 OK", [("Content-Type", "application/x-amz-json-1.1")])
            return [b""]
        answer: Iterable[bytes] = self._moto(environ, start_response)
        return answer
