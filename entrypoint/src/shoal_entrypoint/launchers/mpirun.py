"""What the two mpirun command lines share: hosts, EFA settings, custom options, and values that the user's win over."""

from __future__ import annotations

import shlex
from typing import Mapping

from shoal_entrypoint.launchers.settings import EFA_RDMA, Settings
from shoal_entrypoint.outcome import JobError

__all__ = ["custom_options", "efa_nccl", "efa_rdma", "export", "hosts_option", "preload"]

# Instance types whose NCCL runs over EFA.
_EFA_NCCL = EFA_RDMA | {f"ml.{name}" for name in ("g4dn.8xlarge", "g4dn.12xlarge", "g5.48xlarge", "p3dn.24xlarge")}


def hosts_option(hosts: tuple[str, ...], slots: int) -> str:
    """`--host`: a slot count only where it differs from mpirun's default of one."""
    return ",".join(host if slots == 1 else f"{host}:{slots}" for host in hosts)


def efa_nccl(instance_type: str, environ: Mapping[str, str]) -> list[str]:
    """NCCL's protocol over EFA."""
    return export("NCCL_PROTO", "simple", environ) if instance_type in _EFA_NCCL else []


def efa_rdma(instance_type: str, environ: Mapping[str, str]) -> list[str]:
    """Direct reads of GPU memory."""
    return export("FI_EFA_USE_DEVICE_RDMA", "1", environ) if instance_type in EFA_RDMA else []


def export(name: str, default: str, environ: Mapping[str, str]) -> list[str]:
    """`-x NAME=value`, with the user's value if there is one."""
    return ["-x", f"{name}={environ.get(name) or default}"]


def custom_options(given: object, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """The user's own mpirun options -> (NCCL_DEBUG, the other words in order)."""
    debug = environ.get("NCCL_DEBUG") or "INFO"
    text = given or ""
    if not isinstance(text, str):
        raise JobError(f"custom_mpi_options: a text with options of mpirun was expected, not {given!r}")
    try:
        words = shlex.split(text)
    except ValueError as error:
        from shoal_entrypoint.masking import mask_text

        raise JobError(f"custom_mpi_options: {mask_text(text)!r}: {error}") from None
    rest: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":  # whatever follows is not for us
            rest += words[position - 1 :]
            break
        if word == "--NCCL_DEBUG" and position < len(words):
            debug = words[position]
            position += 1
        elif word.startswith("--NCCL_DEBUG="):
            debug = word.partition("=")[2]
        else:
            rest.append(word)
    return debug, rest


def preload(settings: Settings) -> list[str]:
    """The host name shim, before whatever the user preloads."""
    theirs = settings.user_environment.get("LD_PRELOAD")
    libraries = [library for library in (settings.hostname_shim, theirs) if library]
    return ["-x", f"LD_PRELOAD={':'.join(libraries)}"] if settings.hostname_shim else []
