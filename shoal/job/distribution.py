"""`distribution`, as in the Python SDK's PyTorch estimator: short for the hyperparameters that each form really sends.

A job file may hold it at its top; the request that is checked, run and submitted has the hyperparameters instead. What
each form sends was read off SDK 2.257.7 (the table in tests/shoal/job/test_distribution.py). Pure functions.
"""

import difflib
import json
from collections.abc import Mapping
from typing import Any

from shoal.job.shape import Problem, show

FIELD = "distribution"

# Form -> the options it takes beside `enabled`. The SDK passes over what it does not know; a misspelt word would run a
# job on one process.
_MPI_OPTIONS = "custom_mpi_options"
_FORMS: dict[str, tuple[str, ...]] = {
    "mpi": ("processes_per_host", _MPI_OPTIONS),
    "parameter_server": (),
    "pytorchddp": (_MPI_OPTIONS,),
    "torch_distributed": (),
    "smdistributed": (),
}
_STRATEGIES: dict[str, tuple[str, ...]] = {"dataparallel": (_MPI_OPTIONS,), "modelparallel": ("parameters",)}
_OPTION_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "enabled": ((bool, str), "true or false"),
    "processes_per_host": ((int,), "an integer"),
    _MPI_OPTIONS: ((str,), "a string"),
    "parameters": ((dict,), "an object"),
}
_TRUE_TEXT, _FALSE_TEXT = "true", "false"


def problems(distribution: object, request: Mapping[str, Any]) -> list[Problem]:
    """Return everything that is wrong with a `distribution`, given the request (a valid one) that it stands in."""
    found = form_problems(distribution)
    if not isinstance(distribution, dict):
        return found
    if "instance_groups" in distribution:
        found += _group_problems(distribution["instance_groups"], request)
    groups = request.get("ResourceConfig", {}).get("InstanceGroups", [])
    if not found and len(groups) > 1 and "instance_groups" not in distribution:
        found.append(Problem(FIELD, "the job has several instance groups: name one in distribution.instance_groups"))
    if not found:
        ours = hyperparameters(distribution, request)
        found += [
            Problem(f"HyperParameters.{name}", "is there, and distribution sets it too: keep one")
            for name in ours
            if name in request.get("HyperParameters", {})
        ]
    return found


def form_problems(distribution: object) -> list[Problem]:
    """Return what is wrong with a `distribution` whatever request it stands in."""
    if not isinstance(distribution, dict):
        return [Problem(FIELD, f'{show(distribution)} is not an object such as {{"pytorchddp": {{"enabled": true}}}}')]
    found = []
    for name, form in distribution.items():
        if name == "smdistributed":
            found += _strategy_problems(form)
        elif name in _FORMS:
            found += _form_problems(f"{FIELD}.{name}", form, _FORMS[name])
        elif name != "instance_groups":
            found.append(Problem(f"{FIELD}.{name}", _unknown(str(name), [*_FORMS, "instance_groups"])))
    return found


def hyperparameters(distribution: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyperparameters a valid `distribution` stands for: each value JSON, as the SDK sends it."""
    instance_type = json.dumps(request.get("ResourceConfig", {}).get("InstanceType"))
    groups = distribution.get("instance_groups")
    sent: dict[str, str] = {"sagemaker_distribution_instance_groups": json.dumps(groups)} if groups else {}
    torchrun = _on(distribution.get("torch_distributed"))
    if "pytorchddp" in distribution:
        sent |= _data_parallel(distribution["pytorchddp"], instance_type)
    elif torchrun:
        sent |= _smdistributed(distribution.get("smdistributed", {}), instance_type)
        sent["sagemaker_torch_distributed_enabled"] = json.dumps(distribution["torch_distributed"]["enabled"])
        if not groups:
            sent["sagemaker_instance_type"] = instance_type
    else:
        sent |= _server_and_mpi(distribution)
        sent |= _smdistributed(distribution.get("smdistributed", {}), instance_type)
    return sent


def schema() -> dict[str, Any]:
    """Return the JSON schema of the field."""
    strategies = {name: _form_schema(options) for name, options in _STRATEGIES.items()}
    forms = {name: _form_schema(options) for name, options in _FORMS.items() if name != "smdistributed"}
    forms["smdistributed"] = {
        "type": "object",
        "properties": strategies,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    groups = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1}
    return {"type": "object", "properties": {**forms, "instance_groups": groups}, "additionalProperties": False}


def _form_schema(options: tuple[str, ...]) -> dict[str, Any]:
    kinds = {bool: "boolean", str: "string", int: "integer", dict: "object"}
    properties = {name: {"type": [kinds[kind] for kind in _OPTION_TYPES[name][0]]} for name in ("enabled", *options)}
    return {"type": "object", "properties": properties, "required": ["enabled"], "additionalProperties": False}


def _server_and_mpi(distribution: Mapping[str, Any]) -> dict[str, str]:
    sent = {}
    if "parameter_server" in distribution:
        sent["sagemaker_parameter_server_enabled"] = json.dumps(distribution["parameter_server"]["enabled"])
    if "mpi" in distribution:
        mpi = distribution["mpi"]
        sent["sagemaker_mpi_enabled"] = json.dumps(mpi["enabled"])
        if "processes_per_host" in mpi:
            sent["sagemaker_mpi_num_of_processes_per_host"] = json.dumps(mpi["processes_per_host"])
        sent["sagemaker_mpi_custom_mpi_options"] = json.dumps(mpi.get(_MPI_OPTIONS, ""))
    return sent


def _smdistributed(strategies: Mapping[str, Any], instance_type: str) -> dict[str, str]:
    if "dataparallel" in strategies:
        return _data_parallel(strategies["dataparallel"], instance_type)
    if "modelparallel" not in strategies:
        return {}
    model = strategies["modelparallel"]
    sent = {"sagemaker_distributed_dataparallel_enabled": "false", "sagemaker_instance_type": instance_type}
    if _on(model) and "parameters" in model:
        sent["mp_parameters"] = json.dumps(model["parameters"])
    return sent


def _data_parallel(form: Mapping[str, Any], instance_type: str) -> dict[str, str]:
    sent = {
        "sagemaker_distributed_dataparallel_enabled": json.dumps(form["enabled"]),
        "sagemaker_instance_type": instance_type,
    }
    if _on(form):
        sent["sagemaker_distributed_dataparallel_custom_mpi_options"] = json.dumps(form.get(_MPI_OPTIONS, ""))
    return sent


def _on(form: Mapping[str, Any] | None) -> bool:
    return form is not None and form["enabled"] not in (False, _FALSE_TEXT)


def _strategy_problems(strategies: object) -> list[Problem]:
    place = f"{FIELD}.smdistributed"
    if not isinstance(strategies, dict) or not strategies:
        return [Problem(place, f"{show(strategies)} is not an object with dataparallel or modelparallel")]
    if unknown := [name for name in strategies if name not in _STRATEGIES]:
        return [Problem(f"{place}.{name}", _unknown(str(name), list(_STRATEGIES))) for name in unknown]
    if len(strategies) > 1:
        return [Problem(place, "has dataparallel and modelparallel: only one of them")]
    return [
        problem
        for name, form in strategies.items()
        for problem in _form_problems(f"{place}.{name}", form, _STRATEGIES[name])
    ]


def _form_problems(place: str, form: object, options: tuple[str, ...]) -> list[Problem]:
    if not isinstance(form, dict):
        return [Problem(place, f'{show(form)} is not an object: write {{"enabled": true}}')]
    found = []
    known = ("enabled", *options)
    for name, value in form.items():
        if name not in known:
            found.append(Problem(f"{place}.{name}", _unknown(str(name), list(known))))
            continue
        types, words = _OPTION_TYPES[name]
        text_ok = name != "enabled" or not isinstance(value, str) or value in (_TRUE_TEXT, _FALSE_TEXT)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types) or not text_ok:
            found.append(Problem(f"{place}.{name}", f"{show(value)} is not {words}"))
        elif name == "processes_per_host" and isinstance(value, int) and value < 1:
            found.append(Problem(f"{place}.{name}", f"{value} is less than 1"))
    if "enabled" not in form:
        found.append(Problem(f"{place}.enabled", "is required and missing: true or false"))
    return found


def _group_problems(names: object, request: Mapping[str, Any]) -> list[Problem]:
    place = f"{FIELD}.instance_groups"
    there = [group["InstanceGroupName"] for group in request.get("ResourceConfig", {}).get("InstanceGroups", [])]
    if not isinstance(names, list) or len(names) != 1:
        return [Problem(place, f"{show(names)} is not a list of one group's name")]
    if names[0] not in there:
        known = ", ".join(there) or "none"
        return [Problem(place, f"{show(names[0])} is no group of ResourceConfig.InstanceGroups, which has {known}")]
    return []


def _unknown(name: str, known: list[str]) -> str:
    if name == "pytorchxla":
        return "the SDK sends it only for images of its own, with a compiler that is no part of this project"
    close = difflib.get_close_matches(name, known, n=1)
    return f"no such form or option: did you mean {close[0]}?" if close else f"is not one of {', '.join(known)}"
