"""HTTP to a registry: whether with TLS, how to log in, which faults pass by themselves, and what a refusal says."""

import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import parse_dict_header
from urllib3.util import Retry

from shoal.errors import ShoalError
from shoal.image.host_settings import ca_bundle
from shoal.image.push.login import LoginSource

TIMEOUT_S = (10, 60)  # to connect, and between two bytes
_MOMENTARY = (429, 500, 502, 503, 504)
# Waits 0, 1 and 2 seconds. Every request that is sent this way may be sent twice.
_PATIENT = Retry(total=3, backoff_factor=0.5, status_forcelist=_MOMENTARY, allowed_methods=None, raise_on_status=False)
_AT_ONCE = Retry(total=0)
# Docker Hub answers elsewhere than it is called.
_API_HOSTS: Mapping[str, str] = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}


class Connection:
    """A registry that is logged in to when the first question is asked, and again when it has forgotten."""

    def __init__(self, host: str, scope: str, login: LoginSource, *, insecure: bool) -> None:
        self.host, self.login = host, login
        self._scope = scope
        self._insecure = insecure
        self._verify: str | bool = False if insecure else str(ca_bundle(os.environ) or "") or True
        self._auth: AuthBase = _NoLogin()
        self._base: str | None = None

    def ask(self, method: str, path: str, *, retry: bool = True, **arguments: Any) -> requests.Response:
        """Send a request for `path`, below /v2/ or absolute.

        Raises:
            ShoalError: no answer, or none that can be had without another login.
        """
        try:
            if self._base is None:
                self._base = self._find_base()
                self._log_in()
            url = path if "://" in path else self._base + path
            answer = self._send(method, url, retry=retry, **arguments)
            if answer.status_code == 401:  # a token has come to its end
                self.login.renew()
                self._log_in()
                answer = self._send(method, url, retry=retry, **arguments)
        except requests.RequestException as error:
            raise ShoalError(f"{self.host}: the registry does not answer: {innermost(error)}", exit_code=3) from error
        if answer.status_code in (401, 403):
            raise ShoalError(f"{self.host}: {self._refusal(answer)}: {self.login.advice}", exit_code=3)
        return answer

    def _find_base(self) -> str:
        """Return the address that the registry answers at: with TLS, or, where the engine would too, without."""
        host = _API_HOSTS.get(self.host, self.host)
        if self._insecure:
            try:
                self._send("GET", f"https://{host}/v2/", retry=False)
            except requests.ConnectionError:
                return f"http://{host}/v2/"
        return f"https://{host}/v2/"

    def _log_in(self) -> None:
        """Do what the registry asks for: nothing, Basic, or a token for one repository from a third party."""
        self._auth = _NoLogin()
        wanted = self._send("GET", str(self._base)).headers.get("WWW-Authenticate", "")
        login = self.login.current()
        basic = HTTPBasicAuth(login.username, login.password) if login else None
        scheme, _, fields = wanted.partition(" ")
        if scheme.lower() == "basic" and basic:
            self._auth = basic
        elif scheme.lower() == "bearer":
            said: dict[str, str] = parse_dict_header(fields)  # type: ignore[no-untyped-call]
            query = {"service": said.get("service", ""), "scope": self._scope}
            given = self._send("GET", said.get("realm", ""), params=query, auth=basic or _NoLogin())
            if given.ok:
                self._auth = _Bearer(given.json().get("token") or given.json().get("access_token") or "")

    def _send(self, method: str, url: str, *, retry: bool = True, **arguments: Any) -> requests.Response:
        with requests.Session() as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(max_retries=_PATIENT if retry else _AT_ONCE))
            # `verify` is said for each request: said for the session, REQUESTS_CA_BUNDLE would win over it.
            return session.request(
                method, url, **{"auth": self._auth, "verify": self._verify, "timeout": TIMEOUT_S, **arguments}
            )

    def _refusal(self, answer: requests.Response) -> str:
        login = self.login.current()
        if login is None:
            return "the registry wants a login, and there is none"
        return f"the registry refuses user {login.username!r} ({reason(answer)})"


class _NoLogin(AuthBase):
    """Send no login. Left to itself, requests would take one from a netrc file, which Docker does not."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class _Bearer(AuthBase):
    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def is_insecure(host: str, engine_info: Mapping[str, Any]) -> bool:
    """Return whether the engine would talk to `host` without checking who it is, as it does to loopback addresses."""
    settings = engine_info.get("RegistryConfig") or {}
    index = (settings.get("IndexConfigs") or {}).get(host)
    if index is not None:
        return not index.get("Secure", True)
    networks = [ipaddress.ip_network(cidr) for cidr in settings.get("InsecureRegistryCIDRs") or ()]
    name = host.rsplit(":", 1)[0] if host[-1:].isdigit() and ":" in host else host
    try:
        found = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(name.strip("[]"), None)}
    except (OSError, ValueError):
        return False
    return any(address in network for address in found for network in networks)


def reason(answer: requests.Response) -> str:
    """Return a refusal in one line, the registry's own words where it has any."""
    try:
        first = answer.json()["errors"][0]
        said = ": ".join(filter(None, (str(first.get("message") or ""), _detail(first.get("detail")))))
    except (ValueError, LookupError, TypeError, AttributeError):
        said = answer.text[:200]
    return " ".join(f"{answer.status_code} {answer.reason}: {said}".split()).rstrip(": ")


def _detail(detail: object) -> str:
    """Return what a person can use of a refusal's details: words, or the system's error that a storage driver met."""
    if isinstance(detail, str):
        return detail
    enclosed = detail.get("Enclosed", detail) if isinstance(detail, dict) else None
    number = enclosed.get("Err") if isinstance(enclosed, dict) else None
    return os.strerror(number) if isinstance(number, int) else ""


def innermost(error: BaseException) -> str:
    """Return the cause at the bottom: `Connection refused`, not the four exceptions around it."""
    while (inner := error.__cause__ or error.__context__ or getattr(error, "reason", None)) is not None:
        if not isinstance(inner, BaseException):
            break
        error = inner
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else " ".join(str(error).split())
