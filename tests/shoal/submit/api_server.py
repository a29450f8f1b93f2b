"""What of the Kubernetes API the command uses, on loopback: objects are checked as strictly as the schemas say, kept,
merged and removed with what they own. No controller runs: a test says which pods a job has.
"""

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import schemas
import yaml

_KINDS = {
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "networkpolicies": "NetworkPolicy",
    "services": "Service",
    "jobs": "Job",
    "mpijobs": "MPIJob",
    "pytorchjobs": "PyTorchJob",
    "trainjobs": "TrainJob",
}


class ApiServer:
    """`objects` is (plural, name) -> object; `pods` and `logs` are what a controller and a kubelet would tell."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.logs: dict[str, str] = {}
        self.refuse: str | None = None  # the plural whose creation a quota forbids
        self.operators = set(_KINDS)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        address = f"http://127.0.0.1:{self._server.server_port}"
        contexts = [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}]
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": contexts,
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(content))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def create(self, plural: str, value: dict[str, Any], strict: bool) -> tuple[int, Any]:
        key = (plural, value["metadata"]["name"])
        if self.refuse == plural:
            return _failure(403, f"{plural} {key[1]!r} is forbidden: exceeded quota: small")
        if key in self.objects:
            return _failure(409, f"{plural} {key[1]!r} already exists")
        problem = schemas.problem(value) if strict and schemas.has(value["kind"]) else None
        if problem or value["kind"] != _KINDS[plural]:
            return _failure(400, f"strict decoding error: {problem}")
        self.objects[key] = {**value, "metadata": {**value["metadata"], "uid": str(uuid.uuid4())}}
        return 201, self.objects[key]

    def remove(self, key: tuple[str, str]) -> tuple[int, Any]:
        gone = self.objects.pop(key)
        uid = gone["metadata"]["uid"]
        for other, value in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in value["metadata"].get("ownerReferences", [])):
                del self.objects[other]
        return 200, gone if key[0] == "services" else {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def answer(self, method: str, url: str, body: Any, content_type: str) -> tuple[int, Any]:
        parts, query = urlsplit(url).path.strip("/").split("/"), parse_qs(urlsplit(url).query)
        assert "namespaces" in parts
        namespace, plural, *rest = parts[parts.index("namespaces") + 1 :]
        if namespace != "ml" or plural not in {*self.operators, "pods"}:
            return _failure(404, "the server could not find the requested resource")
        if plural == "pods" and rest:
            return self._log(rest[0])
        if plural == "pods":
            label, _, name = query["labelSelector"][0].partition("=")
            items = [pod for pod in self.pods if pod["metadata"]["labels"].get(label) == name]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        if method == "POST":
            return self.create(plural, body, query.get("fieldValidation") == ["Strict"])
        key = (plural, rest[0])
        if key not in self.objects:
            return _failure(404, f"{plural} {rest[0]!r} not found")
        if method == "DELETE":
            return self.remove(key)
        if method == "PATCH":
            assert "json-patch" not in content_type
            _merge(self.objects[key], body)
        return 200, self.objects[key]

    def _log(self, name: str) -> tuple[int, Any]:
        if name not in self.logs:
            return _failure(400, f'container "train" in pod "{name}" is waiting to start: ContainerCreating')
        return 200, self.logs[name]


@contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """Start a server and its kubeconfig; stop it again."""
    server = ApiServer(folder)
    try:
        yield server
    finally:
        server.close()


def _failure(code: int, message: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def _merge(value: dict[str, Any], change: dict[str, Any]) -> None:
    for key, item in change.items():
        if isinstance(item, dict) and isinstance(value.get(key), dict):
            _merge(value[key], item)
        else:
            value[key] = item


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _go(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            code, value = server.answer(self.command, self.path, body, self.headers.get("Content-Type") or "")
            data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(value, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _go  # noqa: N815 -- the base class's names

        def log_message(self, *_arguments: object) -> None:
            pass

    return Handler
