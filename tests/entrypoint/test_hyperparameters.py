"""Hyperparameters as tables: what is written in the file, what the script gets."""

from __future__ import annotations

import pytest
from shoal_entrypoint.hyperparameters import decode, framework_parameters, split, to_arguments


@pytest.mark.parametrize(
    ("written", "decoded"),
    [
        ("10", 10),
        ("0.1", 0.1),
        ("true", True),
        ("null", None),
        ('"bert"', "bert"),
        ("bert", "bert"),
        ('""', ""),
        ("", ""),
        ('[1, "q"]', [1, "q"]),
        ('{"a": 1}', {"a": 1}),
        ("{not json", "{not json"),
        ("1e3", 1000.0),
        ("007", "007"),
        (3, 3),
    ],
)
def test_a_value_is_json_or_itself(written: object, decoded: object) -> None:
    value = decode({"key": written})["key"]
    assert value == decoded
    assert type(value) is type(decoded)


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({}, []),
        ({"b": 7}, ["-b", "7"]),
        ({"lr": 0.1, "Z": 1, "a": 2}, ["-Z", "1", "-a", "2", "--lr", "0.1"]),
        ({"flag": True, "off": False}, ["--flag", "True", "--off", "False"]),
        ({"none": None, "empty": ""}, ["--empty", "", "--none", ""]),
        ({"lst": [1, 2, "q"]}, ["--lst", "[1, 2, 'q']"]),
        ({"mp_parameters": {"partitions": 2, "ddp": True}}, ["--mp_parameters", "ddp=True,partitions=2"]),
        ({"msg": "a b; $(echo x)"}, ["--msg", "a b; $(echo x)"]),
        ({"é": 1, "z": 2}, ["-z", "2", "-é", "1"]),
    ],
)
def test_arguments(values: dict[str, object], arguments: list[str]) -> None:
    assert to_arguments(values) == arguments


def test_reserved_keys_never_reach_the_script() -> None:
    user, reserved = split(
        {"sagemaker_program": "train.py", "sagemaker_mpi_enabled": True, "lr": 1, "_tuning_objective_metric": "loss"}
    )
    assert user == {"lr": 1}
    assert framework_parameters(reserved) == {"sagemaker_mpi_enabled": True}
