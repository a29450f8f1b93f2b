"""Which hosts a job has, where no resourceconfig.json says so: what Slurm, Kubernetes and others tell in variables.

Each function looks at one scheduler's variables and returns None where they are not there; the first that finds
something decides. Names that a scheduler does not tell are made up (`node-1`): see Found.anonymous.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

from shoal_entrypoint import network
from shoal_entrypoint.outcome import JobError

__all__ = ["Found", "Here", "expand", "find"]

_MOST_HOSTS = 100_000
_WORD = r"(?:[^,\[\]\s]|\[[^\[\]\s]*\])+"
_RANGE = r"[0-9]{1,9}(-[0-9]{1,9})?"


class Found(NamedTuple):
    """The hosts of a job and this one's place among them."""

    source: str
    hosts: Sequence[str]
    place: int
    # Only the first host's name leads to it; the others are known by their numbers.
    anonymous: bool = False


class Here(NamedTuple):
    """What is known about this host itself."""

    name: str
    hosts_file: Path = Path("/etc/hosts")
    hostfile: Path = Path("/etc/mpi/hostfile")
    address: Callable[[], str] = network.own_address

    @classmethod
    def probe(cls) -> Here:
        """This host."""
        return cls(os.uname().nodename)


def find(environ: Mapping[str, str], here: Here) -> Found:
    """The hosts, from the first of these that tells them."""
    for scheduler in (_explicit, _slurm, _indexed_job, _kubeflow, _hostfile, _batch):
        found = scheduler(environ, here)
        if found is not None:
            return found
    return Found("a single host", [here.name], 0)


def expand(text: str) -> list[str]:
    """Slurm's notation: `n[1-3,7],login` is n1, n2, n3, n7, login. As `scontrol show hostnames`.

    Raises:
        ValueError: `text` is not that, or names too many hosts.
    """
    if not re.fullmatch(rf"{_WORD}(\s*,\s*{_WORD})*", text.strip()):
        raise ValueError("not a list of hosts")
    names: list[str] = []
    for word in re.findall(_WORD, text):
        names += _expand_one(word)
    _bound(len(names))
    return names


def _expand_one(word: str) -> list[str]:
    before, bracket, rest = word.partition("[")
    if not bracket:
        return [word]
    inside, _, after = rest.partition("]")
    tails = _expand_one(after) if after else [""]
    numbers: list[str] = []
    for part in inside.split(","):
        if not re.fullmatch(_RANGE, part):
            raise ValueError(f"[{inside}] is no list of numbers")
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if not span:
            raise ValueError(f"[{part}] counts down")
        _bound(len(span) + len(numbers))
        numbers += [str(number).zfill(len(first)) for number in span]
    _bound(len(numbers) * len(tails))
    return [before + number + tail for number in numbers for tail in tails]


def _bound(count: int) -> None:
    if count > _MOST_HOSTS:
        raise ValueError(f"more than {_MOST_HOSTS} hosts")


def _explicit(environ: Mapping[str, str], here: Here) -> Found | None:
    text = environ.get("SHOAL_HOSTS")
    if not text:
        return None
    hosts = _listed("SHOAL_HOSTS", text)
    given = environ.get("SHOAL_HOST_INDEX")
    index = _place_of(here, hosts) if given is None else _whole(environ, "SHOAL_HOST_INDEX", most=len(hosts) - 1)
    if index is None:
        raise JobError(
            f"SHOAL_HOST_INDEX: missing, and this host's name, {here.name}, is none of SHOAL_HOSTS ({text})."
            f" Set it to a number from 0 to {len(hosts) - 1}, another on each host."
        )
    return Found("SHOAL_HOSTS", hosts, index)


def _slurm(environ: Mapping[str, str], _here: Here) -> Found | None:
    name = next((each for each in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environ.get(each)), None)
    if name is None or "SLURM_NODEID" not in environ:
        return None
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    if any(part.partition("(")[0] != "1" for part in tasks.split(",")):
        raise JobError(
            f"SLURM_STEP_TASKS_PER_NODE: {tasks}: start one `train` on each host, which starts the ranks: srun"
            " --ntasks-per-node=1"
        )
    hosts = _listed(name, environ[name])
    return Found("Slurm", hosts, _whole(environ, "SLURM_NODEID", most=len(hosts) - 1))


def _indexed_job(environ: Mapping[str, str], here: Here) -> Found | None:
    """A Kubernetes Indexed Job with a headless service: host names are `<job>-<index>`."""
    if "JOB_COMPLETION_INDEX" not in environ or not environ.get("SHOAL_HOST_COUNT"):
        return None
    count = _whole(environ, "SHOAL_HOST_COUNT", least=1)
    index = _whole(environ, "JOB_COMPLETION_INDEX", most=count - 1)
    base, dash, number = here.name.rpartition("-")
    if not dash or number != str(index):
        raise JobError(
            f"JOB_COMPLETION_INDEX: {index}, but this host is called {here.name} and not <job>-{index}: set the Job's"
            " completionMode to Indexed and leave the pod's hostname alone, or name the hosts in SHOAL_HOSTS"
        )
    domain = environ.get("SHOAL_HOST_DOMAIN") or _own_domain(here)
    tail = "." + domain if domain else ""
    return Found("the Kubernetes Job", [f"{base}-{each}{tail}" for each in range(count)], index)


def _kubeflow(environ: Mapping[str, str], here: Here) -> Found | None:
    """PyTorchJob and TrainJob: torchrun's own variables."""
    if not environ.get("PET_NNODES"):
        return None
    least, _, most = environ["PET_NNODES"].partition(":")
    if most and most != least:
        raise JobError(f"PET_NNODES: {environ['PET_NNODES']}: the number of hosts must be fixed, such as {most}")
    count = _whole({"PET_NNODES": least}, "PET_NNODES", least=1)
    if count == 1:
        return Found("PET_NNODES", [here.name], 0)
    index = _whole(environ, "PET_NODE_RANK", most=count - 1)
    master = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR")
    if not master:
        raise JobError(f"PET_MASTER_ADDR: missing, with PET_NNODES={count}: the name of the first host")
    train_job = re.fullmatch(r"(.+-node-\d+-)0((?:\..*)?)", master)
    if train_job:
        names = [f"{train_job.group(1)}{each}{train_job.group(2)}" for each in range(count)]
        return Found("PET_NNODES", names, index)
    pytorch_job = re.fullmatch(r"(.+)-master-0((?:\..*)?)", master)
    if pytorch_job:
        workers = [f"{pytorch_job.group(1)}-worker-{each}{pytorch_job.group(2)}" for each in range(count - 1)]
        return Found("PET_NNODES", [master, *workers], index)
    return Found("PET_NNODES", _numbered(master, count), index, anonymous=True)


def _hostfile(environ: Mapping[str, str], here: Here) -> Found | None:
    """Lines `name slots=4`, as Open MPI reads them and the MPI operator writes them."""
    path = Path(environ.get("OMPI_MCA_orte_default_hostfile") or here.hostfile)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    hosts = [line.split()[0] for line in (line.partition("#")[0].strip() for line in lines) if line]
    if not hosts:
        return None
    index = _place_of(here, hosts)
    if index is None:
        raise JobError(
            f"{path}: this host's name, {here.name}, is none of {', '.join(hosts)}: `train` runs on the hosts of the"
            " job, not on an MPIJob's launcher (runLauncherAsWorker: true makes it one of them)"
        )
    return Found(str(path), hosts, index)


def _batch(environ: Mapping[str, str], here: Here) -> Found | None:
    """An AWS Batch multi-node job: it tells the others the main node's address, and nobody the others'."""
    if not environ.get("AWS_BATCH_JOB_NUM_NODES"):
        return None
    count = _whole(environ, "AWS_BATCH_JOB_NUM_NODES", least=1)
    index = _whole(environ, "AWS_BATCH_JOB_NODE_INDEX", most=count - 1)
    main = _whole(environ, "AWS_BATCH_JOB_MAIN_NODE_INDEX", most=count - 1)
    leads = index == main
    address = here.address() if leads else environ.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
    if not address:
        raise JobError(
            "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS: missing; AWS Batch sets it on all but the main node"
        )
    # The main node comes first, the others keep their order.
    place = 0 if leads else index + (index < main)
    return Found("AWS Batch", _numbered(address, count), place, anonymous=count > 1)


def _numbered(first: str, count: int) -> list[str]:
    return [first, *(f"node-{index}" for index in range(1, count))]


def _listed(name: str, text: str) -> list[str]:
    try:
        hosts = expand(text)
    except ValueError as error:
        raise JobError(f"{name}: {text!r}: {error}; host names separated by commas, or n[1-4], were expected") from None
    twice = next((host for host in hosts if hosts.count(host) > 1), None) if len(set(hosts)) < len(hosts) else None
    if twice is not None:
        raise JobError(f"{name}: {twice} is named twice")
    return hosts


def _whole(environ: Mapping[str, str], name: str, least: int = 0, most: int = _MOST_HOSTS) -> int:
    text = environ.get(name, "")
    if not (re.fullmatch("[0-9]{1,9}", text) and least <= int(text) <= most):
        raise JobError(f"{name}: a whole number from {least} to {most} was expected, not {text!r}")
    return int(text)


def _place_of(here: Here, hosts: Sequence[str]) -> int | None:
    """By name, with or without its domain."""
    if here.name in hosts:
        return hosts.index(here.name)
    short = here.name.partition(".")[0]
    same = [index for index, host in enumerate(hosts) if host.partition(".")[0] == short]
    return same[0] if len(same) == 1 else None


def _own_domain(here: Here) -> str:
    """From the line that Kubernetes writes for a pod with a subdomain: `10.1.0.7 job-0.net.ns.svc.local job-0`."""
    try:
        lines = here.hosts_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    for line in lines:
        for name in line.partition("#")[0].split()[1:]:
            if name.startswith(here.name + "."):
                return name[len(here.name) + 1 :]
    return ""
