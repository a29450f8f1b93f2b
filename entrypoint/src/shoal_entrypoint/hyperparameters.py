"""Hyperparameters: strings in a JSON file -> typed values -> the user's command line.

The rules are those scripts rely on today: every value is tried as JSON and kept as it is when it is not; keys are
sorted by their bytes; one letter gets one dash. `sagemaker_*` keys steer the launch and never reach the script.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

__all__ = ["decode", "framework_parameters", "is_on", "split", "to_arguments"]

# Words that switch a flag off, though they are not empty.
_OFF = {"", "false", "no", "off", "0", "none", "null"}

_RESERVED_PREFIX = "sagemaker_"
_RESERVED = {"_tuning_objective_metric", "default_user_module_name"}

# Reserved keys that `train` consumes itself; the remaining reserved ones are reported as SM_FRAMEWORK_PARAMS.
_CONSUMED = {
    "sagemaker_program",
    "sagemaker_command",
    "sagemaker_command_arguments",
    "sagemaker_submit_directory",
    "sagemaker_enable_cloudwatch_metrics",
    "sagemaker_container_log_level",
    "sagemaker_job_name",
    "sagemaker_region",
    "sagemaker_s3_output",
    "_tuning_objective_metric",
    "default_user_module_name",
}


def decode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Decode each value. SDKs send JSON ('"bert"', '10'), people send bare words (bert); both are meant."""
    return {key: _decode_one(value) for key, value in values.items()}


def _decode_one(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):  # nested deeper than Python reads: a text like any other
        return value


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the user's hyperparameters from the reserved ones, each in file order."""
    user: dict[str, Any] = {}
    reserved: dict[str, Any] = {}
    for key, value in values.items():
        (reserved if key.startswith(_RESERVED_PREFIX) or key in _RESERVED else user)[key] = value
    return user, reserved


def framework_parameters(reserved: Mapping[str, Any]) -> dict[str, Any]:
    """The reserved keys that describe the launch, as SM_FRAMEWORK_PARAMS shows them."""
    return {key: value for key, value in reserved.items() if key not in _CONSUMED}


def is_on(value: Any) -> bool:
    """Whether a flag is on: anything but an empty value, zero, or a word that says no, in any spelling."""
    return value.strip('" ').lower() not in _OFF if isinstance(value, str) else bool(value)


def to_arguments(values: Mapping[str, Any]) -> list[str]:
    """The user script's command line."""
    arguments: list[str] = []
    for key in sorted(values, key=lambda name: name.encode("utf-8", "surrogatepass")):
        arguments += [("-" if len(key) == 1 else "--") + key if key else "", _argument(values[key])]
    return arguments


def _argument(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)
