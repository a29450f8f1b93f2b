"""GPUs, Neuron cores, EFA: the devices, and whether the container lets anything use them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping

from shoal_entrypoint import devices
from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row
from shoal_entrypoint.check.tools import output

__all__ = ["efa", "gpus", "neuron"]

_DRIVER = re.compile(r"(?:Kernel Module|x86_64|aarch64)\s+(\d+(?:\.\d+)+)")
_FABRIC_PLACES = ("/opt/amazon/efa/lib64", "/opt/amazon/efa/lib", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_RUN_GPUS = "docker run --gpus all (needs NVIDIA's container toolkit on the machine)."


def gpus(count: int, torch: str | None, dev: Path = Path("/dev"), proc: Path = Path("/proc/driver/nvidia")) -> Row:
    """NVIDIA GPUs. `count`: as `train` counts them; `torch`: its version."""
    nodes = sorted(node.name for node in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name))
    driver = _driver(proc / "version")
    models = _models() if count else []
    values = {"count": count, "driver": driver, "devices": nodes, "models": models}
    if not count:
        if driver is not None:
            text = f"none in this container, but the machine has NVIDIA's driver {driver}"
            return Row("gpus", NOTE, text, _RUN_GPUS, values)
        return Row("gpus", OK, "none", "", values)
    text = f"{count}{': ' + ', '.join(models) if models else ''}, driver {driver or 'unknown'}"
    missing = [name for name in ("nvidiactl", "nvidia-uvm") if nodes and not (dev / name).exists()]
    if missing:
        return Row("gpus", PROBLEM, f"{text}; no /dev/{' and no /dev/'.join(missing)}", _RUN_GPUS, values)
    if torch is not None and "+cpu" in torch:
        advice = "Use an image with a torch for CUDA: this one does not see GPUs."
        return Row("gpus", PROBLEM, f"{text}; torch {torch} is built for CPUs", advice, values)
    return Row("gpus", OK, text, "", values)


def neuron(count: int, dev: Path = Path("/dev")) -> Row:
    """AWS Neuron cores. `count`: as `train` counts them."""
    nodes = sorted(node.name for node in dev.glob("neuron*") if re.fullmatch(r"neuron\d+", node.name))
    values = {"cores": count, "devices": nodes}
    if nodes and not count:
        advice = "Install aws-neuronx-tools in the image: `train` asks neuron-ls for the cores."
        return Row("neuron", PROBLEM, f"{len(nodes)} device(s), but neuron-ls counts no cores", advice, values)
    return Row("neuron", OK, f"{count} cores on {len(nodes)} device(s)" if count else "none", "", values)


def efa(
    environ: Mapping[str, str],
    root: Path = Path("/sys/class/infiniband"),
    dev: Path = Path("/dev/infiniband"),
    places: tuple[str, ...] = _FABRIC_PLACES,
) -> Row:
    """Elastic Fabric Adapters, and other InfiniBand devices: the kernel's side, the container's, and libfabric's."""
    here, other = devices.efa_devices(root)
    names = sorted(device.name for device in root.glob("*"))
    library = _libfabric(places)
    provider = here and "provider: efa" in output(["fi_info", "-p", "efa"])
    values = {"efa": here, "infiniband": other, "devices": names, "libfabric": library, "provider": provider}
    if not here:
        if environ.get("SHOAL_EFA") == "1":
            advice = "Unset SHOAL_EFA, or give the container the device: docker run --device=/dev/infiniband/uverbs0."
            return Row("efa", PROBLEM, "none, but SHOAL_EFA=1", advice, values)
        return Row("efa", OK, f"none; InfiniBand: {', '.join(names)}" if other else "none", "", values)
    if environ.get("SHOAL_EFA") == "0":
        return Row("efa", NOTE, f"{', '.join(names)}, not used: SHOAL_EFA=0", "", values)
    if not list(dev.glob("uverbs*")):
        advice = "docker run --device=/dev/infiniband/uverbs0 (one for each), or the EFA plugin in Kubernetes."
        return Row("efa", PROBLEM, f"{', '.join(names)}, but no /dev/infiniband/uverbs*", advice, values)
    if library is None:
        advice = "Install AWS's EFA installer (--skip-kmod) or libfabric1 in the image."
        return Row("efa", PROBLEM, f"{', '.join(names)}, but no libfabric.so.1", advice, values)
    told = "its provider efa answers" if provider else "fi_info was not asked or shows no provider efa"
    return Row("efa", OK if provider else NOTE, f"{', '.join(names)}; {library}; {told}", "", values)


def _libfabric(places: tuple[str, ...]) -> str | None:
    for place in places:
        for path in (*Path(place).glob("libfabric.so.1"), *Path(place).glob("*-linux-gnu/libfabric.so.1")):
            return str(path)
    return None


def _driver(path: Path) -> str | None:
    try:
        match = _DRIVER.search(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return match.group(1) if match else None


def _models() -> list[str]:
    """`NVIDIA H200 x 8`, as nvidia-smi names them; nothing without it."""
    lines = output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()
    names = [line.strip() for line in lines if line.strip()]
    return [f"{name} x {names.count(name)}" for name in sorted(set(names))]
