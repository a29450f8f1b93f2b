"""Sends an image's layers to a registry through the Docker engine, and goes on where a fault has stopped it.

Why the engine: it has the layers, keeps track of which registry has which, sends several at once, leaves out those that
are there and tries each one five times (5 to 20 seconds apart). What it lacks is added here: trying again when it has
given up, a new login when a token has ended, and the reason why a registry refuses.
"""

import enum
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import docker
import requests
from docker.errors import APIError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from shoal.errors import ShoalError
from shoal.image.progress import Progress
from shoal.image.push.login import LoginSource
from shoal.image.push.registry import Registry
from shoal.image.push.registry_http import innermost

# A registry may be silent for long while it checks a layer of gigabytes.
_SILENCE_S = 1800
_REPORT_EVERY_S = 10.0
_LOOK_EVERY_S = 4.0
_LOGIN = re.compile(r"no basic auth credentials|unauthorized|authentication required|token has expired", re.IGNORECASE)
_FINAL = re.compile(
    r"denied|immutable|cannot be overwritten|name unknown|does not exist|no space left|insufficient storage|too large"
    r"|quota|limit exceeded|invalid|x509|HTTP response to HTTPS|\b(400|403|404|405|413|507)\b",
    re.IGNORECASE,
)


class Verdict(enum.Enum):
    """What to do about an error of a push."""

    AGAIN = "again"
    LOGIN = "login"
    FINAL = "final"


def judge(message: str) -> Verdict:
    """Return what to do about an error, by the words of the engine or the registry.

    What is not known is tried again: it costs little, because what is there is not sent again.
    """
    if _LOGIN.search(message):
        return Verdict.LOGIN
    return Verdict.FINAL if _FINAL.search(message) else Verdict.AGAIN


@dataclass
class Layers:
    """What has become of each layer, over all tries."""

    found: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    moving: dict[str, int] = field(default_factory=dict)  # bytes of each, before compression, as far as sent
    moved_at: float = field(default_factory=time.monotonic)  # when the last layer got through

    def note(self, event: dict[str, Any]) -> None:
        """Take in one line of the engine's report."""
        layer, status = event.get("id"), event.get("status", "")
        if layer is None:
            return
        self.found.add(layer)
        if status == "Pushing":
            self.moving[layer] = event["progressDetail"].get("current", 0)
        elif status == "Pushed" and layer not in self.sent:
            self.sent.add(layer)
            self.moved_at = time.monotonic()
        elif status.startswith(("Layer already exists", "Mounted from")) and layer not in self.sent:
            self.there.add(layer)

    def __str__(self) -> str:
        sent_mb = sum(self.moving.values()) / 1e6
        return f"{len(self.sent | self.there)} of {len(self.found)} layers are there, {sent_mb:.0f} MB sent"


class _TryAgainError(Exception):
    """A fault that may pass."""


@dataclass
class Transport:
    """One image on its way to one repository."""

    client: docker.DockerClient
    registry: Registry
    login: LoginSource
    progress: Progress
    patience_s: float
    layers: Layers = field(default_factory=Layers)
    _renewed_at: float = -1.0
    _looked_at: float = -_LOOK_EVERY_S

    def send(self, tag: str) -> str:
        """Push the engine's image of the registry's name and `tag`; return the digest that the engine says it has.

        Raises:
            ShoalError: the registry refuses for good, or nothing has got through for `patience_s` seconds.
        """
        tries = Retrying(
            retry=retry_if_exception_type(_TryAgainError),
            wait=wait_exponential(multiplier=1, max=30),
            stop=lambda state: time.monotonic() - self.layers.moved_at + state.upcoming_sleep > self.patience_s,
            before_sleep=self._say_when,
            reraise=True,
        )
        try:
            return str(tries(self._try_once, tag))
        except _TryAgainError as error:
            raise self._given_up(tag, str(error)) from error

    def _try_once(self, tag: str) -> str:
        digest = ""
        try:
            for event in self._events(tag):
                if "error" in event:
                    self._fail(tag, str(event["error"]))
                if str(event.get("status", "")).startswith("Retrying"):
                    self._look_into(tag)
                digest = (event.get("aux") or {}).get("Digest", digest)
        except APIError as error:
            self._fail(tag, error.explanation or str(error))
        except requests.RequestException as error:
            raise ShoalError(
                f"the Docker engine stopped answering ({innermost(error)}): start it and run the same again",
                exit_code=3,
            ) from error
        if not digest:
            raise _TryAgainError("the engine ended the push without a digest")
        return digest

    def _events(self, tag: str) -> Iterator[dict[str, Any]]:
        self.client.api.timeout = _SILENCE_S
        login = self.login.current()
        name = f"{self.registry.host}/{self.registry.repository}"
        auth = login.as_auth_config() if login else None
        reported = time.monotonic()
        for event in self.client.api.push(name, tag=tag, stream=True, decode=True, auth_config=auth):
            self.layers.note(event)
            self.progress.busy(f"{tag}: {self.layers}")
            if time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                self.progress.done(str(self.layers))
            yield event

    def _look_into(self, tag: str) -> None:
        """Ask the registry why the engine has to try a layer again: no disk becomes larger by waiting."""
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return
        why = self.registry.complaint()
        self._looked_at = time.monotonic()
        if why is None:
            return
        if judge(why) is Verdict.FINAL:
            raise ShoalError(f"{self.registry.uri(tag)}: {why}", exit_code=3)
        if time.monotonic() - self.layers.moved_at > self.patience_s:
            raise self._given_up(tag, why)
        self.progress.done(f"{why}; the engine tries again")

    def _fail(self, tag: str, message: str) -> None:
        verdict = judge(message)
        if verdict is Verdict.LOGIN and self._renewed_at != self.layers.moved_at and self.login.renew():
            self._renewed_at = self.layers.moved_at  # a second time only when something has got through since
            raise _TryAgainError(f"{message}; logged in anew")
        if verdict is Verdict.AGAIN:
            raise _TryAgainError(message)
        advice = f": {self.login.advice}" if verdict is Verdict.LOGIN else ""
        raise ShoalError(f"{self.registry.uri(tag)}: {message}{advice}", exit_code=3)

    def _given_up(self, tag: str, why: str) -> ShoalError:
        return ShoalError(
            f"{self.registry.uri(tag)}: {why}; nothing got through for {self.patience_s:.0f} s ({self.layers}):"
            " run the same again to go on from there",
            exit_code=3,
        )

    def _say_when(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self.progress.done(f"{error}; {self.layers}; again in {state.upcoming_sleep:.0f} s")
