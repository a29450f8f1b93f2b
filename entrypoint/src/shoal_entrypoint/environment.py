"""The environment of the user's process: the SM_* map (names, order and formatting as scripts know them) and the
variables of the rank environment that do not differ between the ranks of a host. Pure functions only.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from shoal_entrypoint import hyperparameters
from shoal_entrypoint.configuration import Job
from shoal_entrypoint.devices import Devices
from shoal_entrypoint.paths import Paths

__all__ = ["MASTER_PORT", "format_value", "host_defaults", "host_environment", "sm_environment"]

MASTER_PORT = 7777


def format_value(value: Any) -> str:
    """One SM_* value: strings as they are, None empty, anything else compact JSON with sorted keys."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def sm_environment(
    job: Job, paths: Paths, devices: Devices, interface: str, tools: Mapping[str, bool], sys_path: list[str]
) -> dict[str, str]:
    """The SM_* variables and PYTHONPATH, in the order in which launchers export them."""
    resource = job.resource
    arguments = hyperparameters.to_arguments(job.user_hyperparameters)
    values: list[tuple[str, Any]] = [
        ("SM_HOSTS", list(resource.hosts)),
        ("SM_NETWORK_INTERFACE_NAME", interface),
        ("SM_HPS", job.user_hyperparameters),
        ("SM_USER_ENTRY_POINT", job.program),
        ("SM_FRAMEWORK_PARAMS", job.framework_parameters),
        ("SM_RESOURCE_CONFIG", resource.raw),
        ("SM_INPUT_DATA_CONFIG", job.inputs),
        ("SM_OUTPUT_DATA_DIR", str(paths.output_data)),
        ("SM_CHANNELS", sorted(job.inputs)),
        ("SM_CURRENT_HOST", resource.current_host),
        ("SM_CURRENT_INSTANCE_TYPE", resource.current_instance_type),
        ("SM_CURRENT_INSTANCE_GROUP", resource.current_group),
        ("SM_CURRENT_INSTANCE_GROUP_HOSTS", resource.group_hosts(resource.current_group)),
        ("SM_INSTANCE_GROUPS", resource.group_names),
        ("SM_INSTANCE_GROUPS_DICT", _groups_by_name(job)),
        ("SM_DISTRIBUTION_INSTANCE_GROUPS", list(job.distribution_groups)),
        ("SM_IS_HETERO", len(resource.groups) > 1),
        ("SM_MODULE_NAME", _module_name(job)),
        ("SM_LOG_LEVEL", job.log_level),
        ("SM_FRAMEWORK_MODULE", job.framework_module),
        ("SM_INPUT_DIR", str(paths.input)),
        ("SM_INPUT_CONFIG_DIR", str(paths.config)),
        ("SM_OUTPUT_DIR", str(paths.output)),
        ("SM_NUM_CPUS", devices.cpus),
        ("SM_NUM_GPUS", devices.gpus),
        ("SM_NUM_NEURONS", devices.neurons),
        ("SM_MODEL_DIR", str(paths.model)),
        ("SM_MODULE_DIR", _module_dir(job, paths)),
        ("SM_TRAINING_ENV", _training_env(job, paths, devices, interface, tools)),
        ("SM_USER_ARGS", arguments),
        ("SM_OUTPUT_INTERMEDIATE_DIR", str(paths.intermediate)),
    ]
    if resource.raw.get("topology"):
        values.append(("SM_TOPOLOGY", resource.raw["topology"]))
    values += [("SM_CHANNEL_" + name.upper(), str(paths.channel(name))) for name in job.inputs]
    values += [("SM_HP_" + name.upper(), value) for name, value in job.user_hyperparameters.items()]
    environment = {name: format_value(value) for name, value in values}
    environment["PYTHONPATH"] = ":".join([str(paths.code), *(entry for entry in sys_path if entry)])
    return environment


def host_environment(job: Job, master: str) -> dict[str, str]:
    """What a rank needs to find the others, as far as it is the same for all ranks of this host."""
    hosts = job.distribution_hosts if job.in_distribution else job.resource.hosts
    return {
        "CURRENT_HOST": job.resource.current_host,
        "SAGEMAKER_JOB_NAME": job.named,
        "SAGEMAKER_REGION": job.region,
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
        "GROUP_RANK": str(hosts.index(job.resource.current_host)),
    }


def host_defaults(devices: Devices, interface: str, local_world_size: int) -> dict[str, str]:
    """Settings that a user's own value always beats."""
    values = dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), interface)
    values["NCCL_DEBUG"] = "WARN"
    if not devices.infiniband:
        values["NCCL_IB_DISABLE"] = "1"
    if local_world_size > 1:
        # Without a limit every rank starts a thread per CPU and they fight for them.
        values["OMP_NUM_THREADS"] = str(max(1, devices.cpus // local_world_size))
    return values


def _module_dir(job: Job, paths: Paths) -> str:
    """Where the code is from, which is only sometimes where it is: as scripts know it."""
    return str(paths.code) if job.submit_directory is None else job.submit_directory


def _module_name(job: Job) -> str:
    name = job.command[0] if job.command else job.program
    if name.startswith("-m"):
        return name[len("-m") :].strip()
    return name[: -len(".py")] if name.endswith(".py") else name


def _groups_by_name(job: Job) -> dict[str, Any]:
    return {group["instance_group_name"]: group for group in job.resource.groups}


def _training_env(
    job: Job, paths: Paths, devices: Devices, interface: str, tools: Mapping[str, bool]
) -> dict[str, Any]:
    resource = job.resource
    return {
        "additional_framework_parameters": job.framework_parameters,
        "channel_input_dirs": {name: str(paths.channel(name)) for name in job.inputs},
        "current_host": resource.current_host,
        "current_instance_group": resource.current_group,
        "current_instance_group_hosts": resource.group_hosts(resource.current_group),
        "current_instance_type": resource.current_instance_type,
        "distribution_hosts": list(job.distribution_hosts),
        "distribution_instance_groups": list(job.distribution_groups),
        "framework_module": job.framework_module,
        "hosts": list(resource.hosts),
        "hyperparameters": job.user_hyperparameters,
        "input_config_dir": str(paths.config),
        "input_data_config": job.inputs,
        "input_dir": str(paths.input),
        "instance_groups": resource.group_names,
        "instance_groups_dict": _groups_by_name(job),
        "is_hetero": len(resource.groups) > 1,
        "is_master": resource.current_host == job.master,
        "is_modelparallel_enabled": job.model_parallel,
        "is_smddpmprun_installed": tools.get("smddpmprun", False),
        "is_smddprun_installed": tools.get("smddprun", False),
        "job_name": job.job_name,
        "log_level": job.log_level,
        "master_hostname": job.master,
        "model_dir": str(paths.model),
        "module_dir": _module_dir(job, paths),
        "module_name": _module_name(job),
        "network_interface_name": interface,
        "num_cpus": devices.cpus,
        "num_gpus": devices.gpus,
        "num_neurons": devices.neurons,
        "output_data_dir": str(paths.output_data),
        "output_dir": str(paths.output),
        "output_intermediate_dir": str(paths.intermediate),
        "resource_config": resource.raw,
        "topology": resource.raw.get("topology", []),
        "user_entry_point": job.program,
    }
