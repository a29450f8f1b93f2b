"""The three JSON files of a job -> frozen values. No decision about how to launch is taken here.

Every error is one line that names the file, the place in it and what was expected, because it ends up in the
1024 characters a user sees of a failed job. Named tuples, not dataclasses: importing those costs 6 ms of the 100.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from shoal_entrypoint import hyperparameters
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError

__all__ = ["Job", "Resource", "find_resource", "load_job", "load_resource", "number", "parse_object", "read_object"]

_DEFAULT_GROUP = "homogeneousCluster"
_LOG_LEVEL_INFO = 20
_FOUND_BY = "found_by"  # in a resourceconfig.json that find_resource() has written

# Any of these makes the current instance group a distribution group when the job does not name the groups.
_ENABLE_FLAGS = (
    "sagemaker_parameter_server_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    "sagemaker_mpi_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_torch_distributed_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
)


class Resource(NamedTuple):
    """resourceconfig.json: which hosts there are and which one this is."""

    raw: dict[str, Any]
    current_host: str
    hosts: tuple[str, ...]
    current_instance_type: str
    current_group: str
    network_interface: str
    groups: tuple[dict[str, Any], ...]
    # Names of hosts other than the first lead nowhere: see discovery.Found.
    anonymous: bool = False

    @property
    def group_names(self) -> list[str]:
        """Names of the instance groups in file order."""
        return [group["instance_group_name"] for group in self.groups]

    def group_hosts(self, name: str) -> list[str]:
        """Hosts of one group; none when the file has no groups."""
        for group in self.groups:
            if group["instance_group_name"] == name:
                return list(group["hosts"])
        return []


class Job(NamedTuple):
    """Everything the files and the environment say about a job."""

    resource: Resource
    inputs: dict[str, Any]
    user_hyperparameters: dict[str, Any]
    framework_parameters: dict[str, Any]
    program: str
    submit_directory: str | None
    s3_output: str | None
    log_level: int
    job_name: str | None  # the platform's
    named: str  # sagemaker_job_name: what SDKs called the job
    region: str
    framework_module: str | None
    distribution_groups: tuple[str, ...]
    distribution_hosts: tuple[str, ...]
    command: tuple[str, ...] = ()  # instead of a program: see command.py
    command_arguments: bool = True  # whether the command gets the hyperparameters as arguments
    model_parallel: bool | None = None  # whether SM_HP_MP_PARAMETERS, given in the environment, says something

    @property
    def master(self) -> str:
        """The host that ranks meet at."""
        return (self.distribution_hosts or self.resource.hosts)[0]

    @property
    def instance_type(self) -> str:
        """The type EFA rules of smddp go by: the estimator's word, else the platform's."""
        return str(self.framework_parameters.get("sagemaker_instance_type") or self.resource.current_instance_type)

    def enabled(self, flag: str) -> bool:
        """Whether a launcher's flag is on."""
        return hyperparameters.is_on(self.framework_parameters.get(flag))

    @property
    def in_distribution(self) -> bool:
        """Whether this host takes part in the distributed launch."""
        named = self.resource.current_group in self.distribution_groups
        return named and self.resource.current_host in self.distribution_hosts


def read_object(path: Path, required: bool = True) -> dict[str, Any]:
    """Read a JSON object, or say in one line why it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not required:
            return {}
        raise JobError(f"{path}: not found. The platform writes it; for a run by hand, make it first.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: cannot be read: {error}") from error
    return parse_object(path, text) if text.strip() or required else {}


def parse_object(path: Path, text: str) -> dict[str, Any]:
    """A JSON object out of `text`, which is from `path`."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise JobError(f"{path}: nested too deeply") from None
    except ValueError as error:
        where = f" line {error.lineno}, column {error.colno}:" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise JobError(f"{path}:{where} not JSON: {reason}") from None
    _check_text(path, value)
    if not isinstance(value, dict):
        raise JobError(f"{path}: a JSON object was expected, not {type(value).__name__}")
    return value


def find_resource(config: Path, environ: Mapping[str, str], save: bool = True) -> Resource:
    """Read resourceconfig.json; where there is none, find the hosts, and `save` it for whoever reads it."""
    path = config / "resourceconfig.json"
    # One of our own making is from an earlier run here, which may have had other hosts.
    if path.exists() and _FOUND_BY not in read_object(path):
        return load_resource(config)
    from shoal_entrypoint import discovery  # most jobs have the file, and each import costs milliseconds

    found = discovery.find(environ, discovery.Here.probe())
    current = found.hosts[found.place]
    raw = {"current_host": current, "hosts": list(found.hosts), _FOUND_BY: found.source}
    if save:
        log(f"hosts from {found.source}: this is {current}, number {found.place} of {len(found.hosts)}")
        _save(path, raw)
    return _resource(path, raw)._replace(anonymous=found.anonymous)


def _save(path: Path, raw: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(raw), encoding="utf-8")
    except OSError:
        pass  # often mounted read-only; SM_RESOURCE_CONFIG says the same


def load_resource(config: Path) -> Resource:
    """Read resourceconfig.json; `hosts` and `current_host` are required."""
    path = config / "resourceconfig.json"
    return _resource(path, read_object(path))


def _resource(path: Path, raw: dict[str, Any]) -> Resource:
    hosts = _required(path, raw, "hosts", list)
    if not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise JobError(f"{path}: hosts: a list of host names was expected, not {json.dumps(hosts)}")
    current = _required(path, raw, "current_host", str)
    if current not in hosts:
        raise JobError(f"{path}: current_host: {current} is not one of hosts {', '.join(hosts)}")
    groups = raw.get("instance_groups") or []
    if not isinstance(groups, list):
        raise JobError(f"{path}: instance_groups: a list was expected, not {json.dumps(groups)}")
    for group in groups:
        for key, kind in (("instance_group_name", str), ("hosts", list)):
            if not isinstance(group, dict) or not isinstance(group.get(key), kind):
                raise JobError(f"{path}: instance_groups: {json.dumps(group)} has no {key}")
    return Resource(
        raw=raw,
        current_host=current,
        hosts=tuple(hosts),
        current_instance_type=str(raw.get("current_instance_type") or "local"),
        current_group=str(raw.get("current_group_name") or _DEFAULT_GROUP),
        network_interface=str(raw.get("network_interface_name") or "eth0"),
        groups=tuple(groups),
    )


def load_job(config: Path, resource: Resource, environ: Mapping[str, str]) -> Job:
    """Read the other two files; the environment wins where the contract says so."""
    path, given = _hyperparameters(config, environ)
    decoded = hyperparameters.decode(given)
    _check_text(path, decoded)
    user, reserved = hyperparameters.split(decoded)
    command = _command(path, reserved, environ)
    program = " ".join(command) or environ.get("SAGEMAKER_PROGRAM") or reserved.get("sagemaker_program")
    if not program or not isinstance(program, str):
        raise JobError(
            f"{path}: sagemaker_program: missing. Name the script to run there, or in the environment variable"
            " SAGEMAKER_PROGRAM."
        )
    parameters = hyperparameters.framework_parameters(reserved)
    groups = _distribution_groups(path, parameters, resource)
    given_parameters = environ.get("SM_HP_MP_PARAMETERS")
    submit = reserved.get("sagemaker_submit_directory") or environ.get("SAGEMAKER_SUBMIT_DIRECTORY")
    return Job(
        resource=resource,
        inputs=read_object(config / "inputdataconfig.json", required=False),
        user_hyperparameters=user,
        framework_parameters=parameters,
        program=program,
        submit_directory=str(submit) if submit else None,
        s3_output=str(reserved.get("sagemaker_s3_output") or "") or None,
        log_level=_log_level(path, reserved, environ),
        job_name=environ.get("TRAINING_JOB_NAME"),
        named=str(reserved.get("sagemaker_job_name") or ""),
        region=_region(reserved, environ),
        framework_module=environ.get("SAGEMAKER_TRAINING_MODULE"),
        distribution_groups=groups,
        distribution_hosts=_distribution_hosts(groups, resource),
        command=command,
        model_parallel=None if given_parameters is None else given_parameters not in ("", "{}"),
        command_arguments=hyperparameters.is_on(reserved.get("sagemaker_command_arguments", True)),
    )


def _command(path: Path, reserved: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a command that takes the place of the program; none in most jobs."""
    where, value = "SHOAL_COMMAND", environ.get("SHOAL_COMMAND") or None
    if value is None:
        where, value = f"{path}: sagemaker_command", reserved.get("sagemaker_command")
    if value is None or value == "":
        return ()
    from shoal_entrypoint import command  # few jobs have one, and each import costs milliseconds

    return command.parse(where, value)


def _hyperparameters(config: Path, environ: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """Where they are from, for messages, and what they are: the file's, else those of SHOAL_HPS."""
    path = config / "hyperparameters.json"
    text = environ.get("SHOAL_HPS")
    if text is not None and not path.exists():
        return Path("SHOAL_HPS"), parse_object(Path("SHOAL_HPS"), text)
    # Whoever names the script in the environment may have nothing else to say.
    return path, read_object(path, required=not (environ.get("SAGEMAKER_PROGRAM") or environ.get("SHOAL_COMMAND")))


def number(environ: Mapping[str, str], name: str, default: float) -> float:
    """A setting from the environment: a number, not negative."""
    text = environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise JobError(f"{name}: a number was expected, not {text!r}")
    return value


def _check_text(path: Path, value: Any) -> None:
    """Half of a character, which JSON can spell, fits no file, no environment and no command line."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise JobError(f"{path}: {error.object[error.start]!r}: half of a surrogate pair is no text") from None
    except RecursionError:
        raise JobError(f"{path}: nested too deeply") from None


def _required(path: Path, raw: Mapping[str, Any], key: str, kind: type) -> Any:
    if key not in raw:
        raise JobError(f"{path}: {key}: missing")
    if not isinstance(raw[key], kind):
        raise JobError(f"{path}: {key}: {kind.__name__} was expected, not {json.dumps(raw[key])}")
    return raw[key]


def _log_level(path: Path, reserved: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    value = reserved.get("sagemaker_container_log_level")
    if value is None:
        value = environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL") or _LOG_LEVEL_INFO
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise JobError(f"{path}: sagemaker_container_log_level: a number was expected, not {value!r}") from None


def _region(reserved: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    if "sagemaker_region" in reserved:
        return str(reserved["sagemaker_region"] or "")
    names = ("AWS_DEFAULT_REGION", "AWS_REGION", "SAGEMAKER_REGION")
    return next((environ[name] for name in names if environ.get(name)), "")


def _distribution_groups(path: Path, parameters: Mapping[str, Any], resource: Resource) -> tuple[str, ...]:
    key = "sagemaker_distribution_instance_groups"
    if key in parameters:
        named = parameters[key]
        if not isinstance(named, list):
            raise JobError(f"{path}: {key}: a list of instance groups was expected, not {named!r}")
        return tuple(str(name) for name in named)
    on = any(hyperparameters.is_on(parameters.get(flag)) for flag in _ENABLE_FLAGS)
    return (resource.current_group,) if on else ()


def _distribution_hosts(groups: tuple[str, ...], resource: Resource) -> tuple[str, ...]:
    if not resource.groups:  # as in runs by hand: whatever is distributed is so over all hosts
        return resource.hosts
    return tuple(host for name in resource.group_names if name in groups for host in resource.group_hosts(name))
