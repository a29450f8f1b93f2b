"""The configuration of `smp.init`: every parameter of `distribution["smdistributed"]["modelparallel"]["parameters"]`.

A parameter is a field of Config with its rule beside it; rules that tie parameters together are in config_rules.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from . import config_rules
from .config_rules import choice, flag, number, text, whole
from .exceptions import SMPConfigError

# What the training toolkit exports: the dictionary of the job as JSON.
ENVIRONMENT = "SM_HP_MP_PARAMETERS"
ALIASES = {"partitions": "pipeline_parallel_degree"}
# Published scripts pass them; docs/smp-config.md says why they change nothing here.
WITHOUT_EFFECT = ("sdp_reduce_bucket_size", "sdp_hierarchical_allgather", "static_mode", "fast_mode", "contiguous")
PLACEMENTS = {"cluster": "DPT", "spread": "TPD"}


@dataclass(frozen=True)
class Config:
    """One field a parameter, named and defaulted as documented; `given` holds the names that were set.

    Read as `smp.state.cfg.<name>`. `placement_strategy` is always three letters: "cluster" is "DPT", "spread" is "TPD".
    """

    pipeline_parallel_degree: int = whole(1, least=1)
    microbatches: int = whole(1, least=1)
    pipeline: str = choice("interleaved", "simple", "_only_forward")
    optimize: str = choice("memory", "speed")
    placement_strategy: str = choice("DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
    auto_partition: bool = flag(True)
    default_partition: int = whole(0, least=0)
    memory_weight: float = number(0.8, least=0.0, most=1.0)
    ddp: bool = flag(False)
    ddp_port: int | None = whole(None, least=0, most=65535)
    ddp_dist_backend: str = choice("auto", "nccl", "gloo", "smddp")
    active_microbatches: int = whole(3, least=1)
    deterministic_server: bool = flag(False)
    tensor_parallel_degree: int = whole(1, least=1)
    offload_activations: bool = flag(False)
    activation_loading_horizon: int = whole(4, least=1)
    fp16_params: bool = flag(False)
    shard_optimizer_state: bool = flag(False)
    prescaled_batch: bool = flag(False)
    skip_tracing: bool = flag(False)
    fp16: bool = flag(False)
    bf16: bool = flag(False)
    sharded_data_parallel_degree: int = whole(1, least=1)
    sdp_reduce_bucket_size: int = whole(500_000_000, least=1)
    sdp_param_persistence_threshold: int = whole(1_000_000, least=0)
    sdp_max_live_parameters: int = whole(1_000_000_000, least=1)
    sdp_hierarchical_allgather: bool = flag(True)
    sdp_gradient_clipping: float = number(1.0, least=0.0)
    delayed_parameter_initialization: bool = flag(False)
    static_mode: bool = flag(False)
    fast_mode: bool = flag(False)
    contiguous: bool = flag(True)
    load_partition: bool = flag(False)
    partition_file: str | None = text(None)
    horovod: bool = flag(False)
    given: frozenset[str] = frozenset()

    @property
    def partitions(self) -> int:
        """The name that release 1.0 gave pipeline_parallel_degree."""
        return self.pipeline_parallel_degree

    def ignored(self) -> dict[str, Any]:
        """The parameters that were given a value of their own and change nothing."""
        values = {name: getattr(self, name) for name in WITHOUT_EFFECT}
        return {name: value for name, value in values.items() if value != getattr(type(self), name)}


PARAMETERS = tuple(field.name for field in dataclasses.fields(Config) if field.name != "given")


def load(given: Mapping[str, Any] | str | None = None) -> Config:
    """The configuration of this job.

    given: a dictionary, the path of a JSON file that holds one, or a JSON object as text. What the launcher exported in
    SM_HP_MP_PARAMETERS wins over it, key by key. Raises SMPConfigError for the first thing that cannot be run.
    """
    values = _renamed(_dictionary(given, "the configuration given to smp.init"))
    values.update(_renamed(_dictionary(os.environ.get(ENVIRONMENT) or None, ENVIRONMENT)))
    return from_values(values)


def from_values(values: Mapping[str, Any]) -> Config:
    """A checked Config of parameters by name; unknown names are ignored with a warning, misspelt ones refused."""
    known: dict[str, Any] = {}
    for name, value in _renamed(dict(values)).items():
        if name not in PARAMETERS:
            meant = config_rules.meant(name, [*PARAMETERS, *ALIASES])
            if meant:
                raise SMPConfigError(f"there is no parameter {name!r}: did you mean {meant!r}?")
            warnings.warn(f"smp: the parameter {name!r} is unknown and ignored", stacklevel=3)
        elif not (value is None and getattr(Config, name) is None):
            known[name] = value
    if isinstance(known.get("placement_strategy"), str):
        known["placement_strategy"] = PLACEMENTS.get(known["placement_strategy"], known["placement_strategy"].upper())
    checked = {
        field.name: config_rules.checked(field.name, known[field.name], field.metadata)
        for field in dataclasses.fields(Config)
        if field.name in known
    }
    checked.setdefault("active_microbatches", checked.get("pipeline_parallel_degree", 1) + 2)
    checked.setdefault("memory_weight", 0.2 if checked.get("optimize") == "speed" else 0.8)
    cfg = Config(**checked, given=frozenset(known))
    config_rules.check_together(cfg)
    return cfg


def _dictionary(given: Mapping[str, Any] | str | None, source: str) -> dict[str, Any]:
    if given is None:
        return {}
    found = _parsed(os.fspath(given), source) if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(found, Mapping):
        raise SMPConfigError(f"{source} is a {type(found).__name__}: it must be a dictionary of parameters")
    return {str(name): value for name, value in found.items()}


def _parsed(given: str, source: str) -> Any:
    shown = source
    if not given.lstrip().startswith("{"):
        path = Path(given)
        if not path.is_file():
            raise SMPConfigError(f"{source} is {given!r}: neither a JSON object nor the path of a file that holds one")
        given, shown = path.read_text(encoding="utf-8"), str(path)
    try:
        return json.loads(given)
    except json.JSONDecodeError as error:
        raise SMPConfigError(f"{shown} is not JSON: {error}") from error


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    for alias, name in ALIASES.items():
        if alias in values:
            value = values.pop(alias)
            if values.setdefault(name, value) != value:
                raise SMPConfigError(
                    f"{alias} is {value!r} and {name} is {values[name]!r}: they are one parameter, give one of them"
                )
    return values
