"""The rate at which a host may send: a token bucket filter of Linux's traffic control on the host's interface.

The engine has no such limit. A helper container sets it: it shares the host's network, has the one capability that
this needs, and runs this machine's own `tc`, which it sees read-only. So no image needs `tc`, and no user needs root.
"""

import shutil
from collections.abc import Mapping

import docker
from docker.errors import APIError
from docker.models.containers import Container
from docker.types import Mount

from shoal.errors import ShoalError

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin"  # `tc` is seldom on a user's own
_INTERFACE = "eth0"
_SEEN_AT = "/machine"


def require_tc() -> None:
    """Refuse a machine without `tc`."""
    if shutil.which("tc", path=_PATH) is None:
        raise ShoalError("--link-rate: there is no tc on this machine: install it (Debian: apt install iproute2)")


def qdisc(rate: int) -> list[str]:
    """Return the arguments of `tc` that limit the interface to `rate` bits a second."""
    # The bucket holds 10 ms, and never less than one segment as the kernel hands it down: with less nothing passes.
    burst = max(128 * 1024, rate // 8 // 100)
    words = f"qdisc add dev {_INTERFACE} root tbf rate {rate}bit burst {burst} latency 50ms"
    return words.split()


def limit_link(
    client: docker.DockerClient, container: Container, image: str, rate: int, labels: Mapping[str, str]
) -> None:
    """Limit what a running container sends.

    Raises:
        ShoalError: the helper failed.
    """
    tc = shutil.which("tc", path=_PATH) or "tc"
    helper = client.containers.create(
        image,
        entrypoint=["chroot", _SEEN_AT, tc],
        command=qdisc(rate),
        network_mode=f"container:{container.id}",
        cap_add=["NET_ADMIN"],
        user="0",
        labels=dict(labels),
        mounts=[Mount(_SEEN_AT, "/", type="bind", read_only=True)],
    )
    failed = ""
    try:
        helper.start()
        if helper.wait()["StatusCode"] != 0:
            failed = " ".join(helper.logs().decode(errors="replace").split()) or "without a word"
    except APIError as error:
        failed = str(error.explanation or error)
    finally:
        helper.remove(force=True)
    if failed:
        container.reload()
        if container.status == "running":  # one that has ended has no network any more, and sends nothing
            raise ShoalError(f"--link-rate: tc failed: {failed}", exit_code=3)
