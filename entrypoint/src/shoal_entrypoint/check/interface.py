"""The network interface that ranks talk over: named, chosen, and what the kernel says about it."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
from pathlib import Path
from typing import Mapping

from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row

__all__ = ["address_of", "interface", "matches", "settings"]

_NET = Path("/sys/class/net")
_SIOCGIFADDR = 0x8915
_SETTINGS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def interface(named: str, chosen: str, several: bool, net: Path = _NET) -> Row:
    """The interface of this host. `several`: other hosts must be reached over it."""
    folder = net / chosen
    speed, mtu = _number(folder / "speed"), _number(folder / "mtu")
    address = address_of(chosen)
    there = folder.exists()
    values = {
        "named": named,
        "chosen": chosen,
        "exists": there,
        "address": address,
        "speed_mbit": speed if speed and speed > 0 else None,
        "mtu": mtu,
    }
    if not there:
        others = ", ".join(sorted(path.name for path in net.glob("*")))
        advice = "Set network_interface_name in resourceconfig.json to one of them."
        return Row("interface", PROBLEM, f"{chosen}: there is none of this name, but {others}", advice, values)
    if several and chosen == "lo":
        advice = "Let the first host's name resolve to an address that other machines reach, not to 127.0.0.1."
        return Row("interface", PROBLEM, "lo leads to no other host", advice, values)
    words = [f"{chosen}: {address or 'no IPv4 address'}", *([f"MTU {mtu}"] if mtu else [])]
    words += [f"{speed / 1000:g} Gbit/s"] if speed and speed > 0 else []
    text = ", ".join(words)
    if several and address is None:
        advice = "Give it an address, or set network_interface_name to an interface that has one."
        return Row("interface", NOTE, text, advice, values)
    if chosen != named:
        why = "it leads to the first host" if several else "it is there"
        return Row("interface", NOTE, f"{text}; used because {named} does not exist here and {why}", "", values)
    return Row("interface", OK, text, "", values)


def settings(environ: Mapping[str, str], net: Path = _NET) -> list[Row]:
    """Variables of the user's that name an interface which is not there: NCCL and gloo fail late and unclearly then."""
    names = sorted(path.name for path in net.glob("*"))
    rows = []
    for variable in _SETTINGS:
        value = environ.get(variable)
        if value and not any(matches(variable, value, name) for name in names):
            text = f"{variable}={value}: none of this host's interfaces ({', '.join(names)})"
            advice = f"Unset {variable}: `train` sets it to the interface above."
            rows.append(Row("interface", PROBLEM, text, advice, {"variable": variable, "value": value}))
    return rows


def matches(variable: str, value: str, name: str) -> bool:
    """Whether a setting means an interface. NCCL reads prefixes, `=name` exactly, and `^` for all others."""
    exclude = value.startswith("^")
    words = [word for word in re.sub(r"^[\^=]+", "", value).split(",") if word]
    exact = variable != "NCCL_SOCKET_IFNAME" or value.lstrip("^").startswith("=")
    means = any(name == word if exact else name.startswith(word) for word in words)
    return means != exclude if variable == "NCCL_SOCKET_IFNAME" else means


def address_of(name: str) -> str | None:
    """The IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # the kernel refuses the speed of a link that is down
        return None
