"""ECR's API by moto on loopback. It has no layers: its login sends whoever asks to a real registry beside it."""

import base64
import datetime as dt
import json
import threading
from collections.abc import Iterable
from typing import Any

import boto3
import requests
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from registry_server import RegistryServer
from werkzeug.serving import make_server

_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class EcrServer:
    """`passwords` are handed out in turn, the last one again and again; each is good for `token_hours`."""

    def __init__(self, registry: RegistryServer, *passwords: str, token_hours: float = 12) -> None:
        self._registry, self._passwords, self._hours = registry, list(passwords), token_hours
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.tokens_given = 0
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        requests.post(f"{self.url}/moto-api/reset", timeout=10)

    @property
    def environment(self) -> dict[str, str]:
        return {**_KEYS, "AWS_ENDPOINT_URL_ECR": self.url, "AWS_REGION": "us-west-2"}

    @property
    def client(self) -> Any:
        keys = {key.lower(): value for key, value in _KEYS.items()}
        return boto3.client("ecr", endpoint_url=self.url, region_name="us-west-2", **keys)

    def allow_only(self, *actions: str) -> dict[str, str]:
        """Check from now on who asks; return the environment of somebody who may do `actions`."""
        keys = {key.lower(): value for key, value in _KEYS.items()}
        iam = boto3.client("iam", endpoint_url=self.url, region_name="us-west-2", **keys)
        iam.create_user(UserName="ann")
        statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName="ann", PolicyName="some", PolicyDocument=policy)
        key = iam.create_access_key(UserName="ann")["AccessKey"]
        self._check_who_asks()
        return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

    def _check_who_asks(self) -> None:
        requests.post(f"{self.url}/moto-api/reset-auth", data=b"0", timeout=10)

    def close(self) -> None:
        requests.post(f"{self.url}/moto-api/reset-auth", data=b"inf", timeout=10)
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not environ.get("HTTP_X_AMZ_TARGET", "").endswith("GetAuthorizationToken"):
            answer: Iterable[bytes] = self._moto(environ, start_response)
            return answer
        seen: list[Any] = []
        body = b"".join(self._moto(environ, lambda *arguments: seen.append(arguments)))
        status, headers = seen[0][:2]
        if status.startswith("200"):
            body = self._redirected(json.loads(body))
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start_response(status, [*kept, ("Content-Length", str(len(body)))])
        return [body]

    def _redirected(self, answer: dict[str, Any]) -> bytes:
        password = self._passwords[min(self.tokens_given, len(self._passwords) - 1)]
        self.tokens_given += 1
        ends = dt.datetime.now(tz=dt.UTC) + dt.timedelta(hours=self._hours)
        answer["authorizationData"][0].update(
            authorizationToken=base64.b64encode(f"AWS:{password}".encode()).decode(),
            expiresAt=ends.timestamp(),
            proxyEndpoint=f"http://{self._registry.host}",
        )
        return json.dumps(answer).encode()
