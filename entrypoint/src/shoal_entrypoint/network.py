"""Which network interface ranks talk over. No packets are sent."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Sequence

__all__ = ["addresses", "choose_interface", "own_address", "own_addresses", "reachable_name"]

_SIOCGIFADDR = 0x8915


def choose_interface(named: str, hosts: Sequence[str], alone: bool, net: Path = Path("/sys/class/net")) -> str:
    """The interface that resourceconfig.json names if it exists here, else the one that leads to `hosts`."""
    if (net / named).exists():
        return named
    return next(filter(None, map(_routing_to, hosts)), "lo" if alone else named)


def reachable_name(host: str, alone: bool) -> str:
    """The name by which ranks can find a host: `docker run` of a single host often knows it by no name at all."""
    if not alone or host == os.uname().nodename or addresses(host):
        return host
    return "localhost"


def addresses(host: str) -> list[str]:
    """Every address a host name has; none when it does not resolve (yet)."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def own_address() -> str:
    """The address of this host that leads outside, else one of its name's; "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return next((one for one in addresses(os.uname().nodename) if not one.startswith("127.")), "")


def own_addresses(inet6: Path = Path("/proc/net/if_inet6")) -> list[str]:
    """Every address of this host's interfaces: where connections that it opens come from."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(socket.inet_ntoa(answer[20:24]))
    try:
        lines = inet6.read_text().splitlines()
    except OSError:
        lines = []
    found += [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in lines if line.strip()]
    return [one for one in found if one != "::1" and not one.startswith("127.")]


def _routing_to(master: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))  # a UDP connect only looks up the route
        except OSError:
            return None
        local = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == local:
                return name
    return "lo" if local.startswith("127.") else None
