"""CA_REPOSITORY_ARN: pip installs from a private index. The service is a stand-in for its two calls, as botocore's
model describes them, and an index that wants the token it gave out; boto3 and pip are real.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Host, MakeCluster, until

ARN = "arn:aws:codeartifact:eu-west-1:111122223333:repository/my-domain/my-repository"
TOKEN = "secret/to+ken=="
ENVIRONMENT = {
    "CA_REPOSITORY_ARN": ARN,
    "AWS_ENDPOINT_URL_CODEARTIFACT": "http://127.0.0.1:9001",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_MAX_ATTEMPTS": "1",
    "PIP_TARGET": "/opt/ml/code",
    "PIP_NO_DEPS": "1",
}

SERVICE = """\
import base64, http.server, json, pathlib, sys
here, token = pathlib.Path(sys.argv[1]), sys.argv[2]
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body, kind="application/json", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        path, _, query = self.path.partition("?")
        with (here / "requests").open("a") as file:
            file.write(f"{self.command} {path} {'&'.join(sorted(query.split('&')))}\\n")
        if (here / "denied").exists():
            body = b'{"message": "not\\\\nfor you"}'
            return self.answer(403, body, x_amzn_errortype="AccessDeniedException")
        if self.command == "POST" and path == "/v1/authorization-token":
            return self.answer(200, json.dumps({"authorizationToken": token}).encode())
        if self.command == "GET" and path == "/v1/repository/endpoint":
            return self.answer(200, b'{"repositoryEndpoint": "http://127.0.0.1:9001/pypi/my-repository/"}')
        given = self.headers.get("Authorization", "")
        if given != "Basic " + base64.b64encode(f"aws:{token}".encode()).decode():
            return self.answer(401, b"", WWW_Authenticate='Basic realm="index"')
        wheel = "brought-1-py3-none-any.whl"
        if path == "/pypi/my-repository/simple/brought/":
            return self.answer(200, f'<a href="/files/{wheel}">{wheel}</a>'.encode(), "text/html")
        if path == f"/files/{wheel}":
            return self.answer(200, (here / wheel).read_bytes(), "application/zip")
        self.answer(404, b"")
    do_GET = do_POST
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 9001), Handler)
(here / "up").touch()
server.serve_forever()
"""


@contextlib.contextmanager
def service(host: Host) -> Iterator[Path]:
    """The service, with one package in its index, inside the host."""
    folder = host.folder / "service"
    folder.mkdir()
    with zipfile.ZipFile(folder / "brought-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought.py", "WORD = 'brought by pip'\n")
        wheel.writestr("brought-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
        wheel.writestr("brought-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("brought-1.dist-info/RECORD", "")
    argv = ["ip", "netns", "exec", host.namespace, sys.executable, "-c", SERVICE, str(folder), TOKEN]
    with subprocess.Popen(argv) as server:
        try:
            until((folder / "up").exists)
            yield folder
        finally:
            server.kill()


def test_pip_installs_from_the_index_and_nobody_sees_the_token(cluster: MakeCluster) -> None:
    one = cluster(1)
    host = one.hosts[0]
    script = "import brought, json, os\nprint(brought.WORD)\nprint(json.dumps(dict(os.environ)))\n"
    one.job({}, script, {"requirements.txt": "brought\n"})
    with service(host) as folder:
        one.start(ENVIRONMENT)
        assert one.wait(60) == [0], host.stderr
        asked = (folder / "requests").read_text().splitlines()
    who = "domain-owner=111122223333&domain=my-domain"
    assert asked[:2] == [
        f"POST /v1/authorization-token {who}",
        f"GET /v1/repository/endpoint {who}&format=pypi&repository=my-repository",
    ]
    assert "brought by pip" in host.stdout
    assert json.loads(host.stdout.splitlines()[-1])["CA_REPOSITORY_ARN"] == ARN
    for said in (host.stdout, host.stderr):
        assert "secret" not in said


def test_a_package_that_the_index_has_not_fails_without_the_token(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({}, "pass", {"requirements.txt": "never-made\n"})
    with service(one.hosts[0]):
        one.start(ENVIRONMENT)
        assert one.wait(60) == [1]
    failure = one.hosts[0].failure
    assert failure.startswith("InstallRequirementsError:\nExitCode 1\n")
    assert "never-made" in failure
    assert "secret" not in failure + one.hosts[0].stderr + one.hosts[0].stdout


def test_no_access_is_said_in_a_line(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({}, "pass", {"requirements.txt": "brought\n"})
    with service(one.hosts[0]) as folder:
        (folder / "denied").touch()
        one.start(ENVIRONMENT)
        assert one.wait(60) == [1]
    failure = one.hosts[0].failure
    assert failure.startswith(
        f"CA_REPOSITORY_ARN: {ARN}: no access to the package index: An error occurred (AccessDenied"
    )
    assert "GetAuthorizationToken" in failure
    assert failure.endswith(": not for you")
    assert "\n" not in failure


@pytest.mark.parametrize(
    ("changes", "files", "text"),
    [
        (
            {"CA_REPOSITORY_ARN": "arn:aws:s3:::bucket"},
            {},
            "CA_REPOSITORY_ARN: 'arn:aws:s3:::bucket': arn:aws:codeartifact:<region>:<account>:repository/<domain>/"
            "<repository> was expected",
        ),
        (
            {"PYTHONPATH": "/opt/ml/code"},
            {"boto3.py": "raise ImportError"},
            f"CA_REPOSITORY_ARN: {ARN}: needs boto3 in the image: pip install boto3",
        ),
    ],
    ids=["no repository", "no boto3"],
)
def test_an_index_that_cannot_be_asked_is_said_in_a_line(
    cluster: MakeCluster, changes: dict[str, str], files: dict[str, str], text: str
) -> None:
    one = cluster(1)
    one.job({}, "pass", {"requirements.txt": "brought\n", **files})
    one.start({**ENVIRONMENT, **changes})
    assert one.wait() == [1]
    assert one.hosts[0].failure == text


def test_without_requirements_nobody_is_asked(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({}, "print('ran')")
    one.start(ENVIRONMENT)
    assert one.wait() == [0]
