"""The rules of Config: what one parameter may be, and what parameters may be together.

The last part mirrors what the SageMaker SDK checks before it starts a job, so that a job that starts there starts here.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from .checks import shown
from .exceptions import SMPConfigError

if TYPE_CHECKING:
    from .config import Config


def whole(default: int | None, least: int, most: int | None = None) -> Any:
    """A field for a whole number in [least, most]; 5e8 is one too, as JSON writers print large ones so."""
    return dataclasses.field(default=default, metadata={"kind": "whole", "least": least, "most": most})


def number(default: float, least: float, most: float | None = None) -> Any:
    """A field for a real number in [least, most]."""
    return dataclasses.field(default=default, metadata={"kind": "number", "least": least, "most": most})


def flag(default: bool) -> Any:
    """A field for True or False."""
    return dataclasses.field(default=default, metadata={"kind": "flag"})


def choice(*allowed: str) -> Any:
    """A field for one of these words, the first by default."""
    return dataclasses.field(default=allowed[0], metadata={"kind": "choice", "allowed": allowed})


def text(default: str | None) -> Any:
    """A field for any text."""
    return dataclasses.field(default=default, metadata={"kind": "text"})


def meant(name: str, known: Sequence[str]) -> str | None:
    """The known name that `name` is a misspelling of."""
    # One letter of a short name is more of it.
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.85 if len(name) > 5 else 0.75)
    return close[0] if close else None


def checked(name: str, value: Any, rule: Mapping[str, Any]) -> Any:
    """`value` as the type of its field; SMPConfigError if it is not allowed."""
    kind = rule["kind"]
    if kind == "flag":
        return _flag(name, value)
    if kind == "choice":
        if value not in rule["allowed"]:
            words = ", ".join(map(repr, _words(name, rule["allowed"])))
            raise SMPConfigError(f"{name} is {shown(value)}: it must be one of {words}")
        return value
    if kind == "text":
        if not isinstance(value, str):
            raise SMPConfigError(f"{name} is {shown(value)}: it must be a string")
        return value
    return _number(name, value, rule)


def _words(name: str, allowed: Sequence[str]) -> list[str]:
    shown = [word for word in allowed if not word.startswith("_")]
    return ["cluster", "spread", *shown] if name == "placement_strategy" else shown


def _flag(name: str, value: Any) -> bool:
    # The SDK lets 0 and 1 through as well.
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise SMPConfigError(f"{name} is {shown(value)}: it must be true or false")
    return bool(value)


def _number(name: str, value: Any, rule: Mapping[str, Any]) -> int | float:
    least, most = rule["least"], rule["most"]
    integral = rule["kind"] == "whole"
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    if right and integral:
        right = float(value).is_integer()
    # Written so that a NaN fails.
    if not right or not value >= least or not (most is None or value <= most):
        kind = "a whole number" if integral else "a number"
        limits = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise SMPConfigError(f"{name} is {shown(value)}: it must be {kind} {limits}")
    return int(value) if integral else float(value)


def check_together(cfg: Config) -> None:
    """Raises SMPConfigError for parameters that exclude or need one another."""
    _check_partitions(cfg)
    _check_data_parallelism(cfg)
    if cfg.fp16 and cfg.bf16:
        raise SMPConfigError("fp16 and bf16 are both true: choose one")
    if cfg.sharded_data_parallel_degree > 1:
        _check_sharding(cfg)


def _check_partitions(cfg: Config) -> None:
    degree = cfg.pipeline_parallel_degree
    if not cfg.auto_partition and "default_partition" not in cfg.given:
        raise SMPConfigError(
            "auto_partition is false and default_partition is not given: "
            f"say which partition (0 to {degree - 1}) takes the modules that no smp.partition context places"
        )
    if cfg.default_partition >= degree:
        raise SMPConfigError(
            f"default_partition is {cfg.default_partition}: it must be less than the number of partitions, {degree}"
        )
    if cfg.load_partition and cfg.partition_file is None:
        raise SMPConfigError("load_partition is true and partition_file is not given: name the file to load from")


def _check_data_parallelism(cfg: Config) -> None:
    if cfg.horovod:
        other = "they exclude each other, remove horovod" if cfg.ddp else "it is not for PyTorch, use ddp"
        raise SMPConfigError(f"horovod is true: {other}")
    for name in ("ddp_port", "ddp_dist_backend"):
        if name in cfg.given and "ddp" not in cfg.given:
            raise SMPConfigError(f"{name} is given without ddp: set ddp to true, or remove {name}")
    if cfg.tensor_parallel_degree > 1 and not cfg.ddp:
        raise SMPConfigError(f"tensor_parallel_degree is {cfg.tensor_parallel_degree}: it needs ddp to be true")


def _check_sharding(cfg: Config) -> None:
    degree = f"sharded_data_parallel_degree is {cfg.sharded_data_parallel_degree}"
    if not cfg.ddp:
        raise SMPConfigError(f"{degree}: it needs ddp to be true")
    if cfg.pipeline_parallel_degree > 1:
        raise SMPConfigError(
            f"{degree} and pipeline_parallel_degree is {cfg.pipeline_parallel_degree}: sharded data parallelism needs "
            "it to be 1"
        )
    if cfg.shard_optimizer_state:
        raise SMPConfigError(f"{degree} and shard_optimizer_state is true: the former shards that state too, remove it")
