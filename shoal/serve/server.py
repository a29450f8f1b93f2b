"""The endpoint: moto's server for S3, CloudWatch Logs and STS, ours for SageMaker, and nothing else.

moto pretends to have done what it is asked. That is right for S3, whose objects it really keeps, and wrong for jobs of
any kind: what is not in `_SERVICES` is refused.
"""

import ipaddress
import json
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from flask import Flask
from moto.core.utils import convert_to_flask_response
from moto.moto_server.werkzeug_app import (
    BackendRequest,
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

from shoal.serve.api import JOBS, TrainingJobs
from shoal.serve.jobs import Jobs
from shoal.serve.s3_objects import S3Objects

_SERVICES = ("s3", "logs", "sts", "sagemaker")


class _QuietHandler(MotoRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing: a client that waits for a job asks every few seconds."""


class _Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """The service is not one of ours."""


class Endpoint:
    """An HTTP server that answers in threads of its own. Give it its jobs before it serves."""

    def __init__(self, host: str, port: int, objects: S3Objects) -> None:
        self._objects = objects
        self._is_private = ipaddress.ip_address(host).is_loopback
        self._dispatcher = DomainDispatcherApplication(self._application)
        # Bound here: Werkzeug would say in its own words that it cannot, and end the process.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as bound:
            self._server: BaseWSGIServer = make_server(
                host, port, self._answer, threaded=True, request_handler=_QuietHandler, fd=bound.fileno()
            )
        self._jobs: Jobs | None = None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.port}"

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def give(self, jobs: Jobs) -> None:
        """Say which jobs SageMaker's operations are about."""
        self._jobs = jobs

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def _application(self, service: Any) -> Flask:
        if service not in _SERVICES:
            raise _Refused(service)
        if service != "sagemaker":
            return create_backend_app(service)
        application = Flask("shoal")
        application.debug = True  # exceptions come up to `_answer`
        application.request_class = BackendRequest
        application.config[JOBS] = self._jobs
        view = convert_to_flask_response(TrainingJobs.dispatch)
        application.add_url_rule("/", "operation", view, methods=["POST"])
        return application

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_ORIGIN" in environ or "HTTP_SEC_FETCH_SITE" in environ:
            return _error(start_response, "403 Forbidden", "AccessDenied", "no web page may ask this endpoint")
        if self._is_private and not _is_here(environ.get("HTTP_HOST", "")):
            text = "a request must name the endpoint by its address, or as localhost"
            return _error(start_response, "403 Forbidden", "AccessDenied", text)
        try:
            answer: Iterable[bytes] = self._dispatcher(environ, start_response)
        except _Refused as refused:
            text = f"shoal serve has no {refused}: it has {', '.join(_SERVICES)}"
            return _error(start_response, "501 Not Implemented", "NotImplemented", text)
        except UnicodeDecodeError as error:
            return _error(
                start_response, "400 Bad Request", "SerializationException", f"the body is not UTF-8: {error}"
            )
        except NotImplementedError as error:
            return _error(start_response, "501 Not Implemented", "NotImplemented", str(error))
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            try:
                self._objects.keep()  # before the client hears that its object is stored
            except OSError as error:
                text = f"the object is not kept: {error.filename}: {error.strerror}"
                return _error(start_response, "500 Internal Server Error", "InternalError", text)
        return answer


def _is_here(asked: str) -> bool:
    """Whether a Host header names this machine and no other: a web page can make its own name lead here."""
    name = urlsplit(f"//{asked}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _error(start_response: Any, status: str, code: str, text: str) -> Iterable[bytes]:
    body = json.dumps({"__type": code, "message": text}).encode()
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
    # With what is being handled: WSGI lets an answer that has not been sent be taken back for that only.
    start_response(status, headers, sys.exc_info() if sys.exc_info()[0] else None)
    return [body]
