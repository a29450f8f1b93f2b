"""Parameters: their names, defaults and rules, where they come from, and the sentences for wrong ones."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from smdistributed.modelparallel.torch import config
from smdistributed.modelparallel.torch.config import PARAMETERS, WITHOUT_EFFECT, Config, from_values, load
from smdistributed.modelparallel.torch.exceptions import SMPConfigError

DOCUMENTED = {
    "pipeline_parallel_degree": 1,
    "partitions": 1,
    "microbatches": 1,
    "pipeline": "interleaved",
    "optimize": "memory",
    "placement_strategy": "DPT",
    "auto_partition": True,
    "default_partition": 0,
    "memory_weight": 0.8,
    "ddp": False,
    "ddp_dist_backend": "auto",
    "active_microbatches": 3,
    "deterministic_server": False,
    "tensor_parallel_degree": 1,
    "offload_activations": False,
    "activation_loading_horizon": 4,
    "fp16_params": False,
    "shard_optimizer_state": False,
    "prescaled_batch": False,
    "skip_tracing": False,
    "fp16": False,
    "bf16": False,
    "sharded_data_parallel_degree": 1,
    "sdp_reduce_bucket_size": 500_000_000,
    "sdp_param_persistence_threshold": 1_000_000,
    "sdp_max_live_parameters": 1_000_000_000,
    "sdp_hierarchical_allgather": True,
    "sdp_gradient_clipping": 1.0,
}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SM_HP_MP_PARAMETERS", raising=False)


@pytest.mark.parametrize(("name", "default"), DOCUMENTED.items())
def test_documented_defaults(name: str, default: Any) -> None:
    assert getattr(Config(), name) == default
    assert getattr(load(), name) == default


def test_defaults_that_depend_on_others() -> None:
    assert from_values({"pipeline_parallel_degree": 4}).active_microbatches == 6
    assert from_values({"optimize": "speed"}).memory_weight == 0.2
    assert from_values({"optimize": "speed", "memory_weight": 0.5}).memory_weight == 0.5


@pytest.mark.parametrize(
    ("given", "letters"), [("cluster", "DPT"), ("spread", "TPD"), ("PTD", "PTD"), ("tpd", "TPD"), ("DTP", "DTP")]
)
def test_placement_names_become_letters(given: str, letters: str) -> None:
    assert from_values({"placement_strategy": given}).placement_strategy == letters


WRONG = [
    ({"microbatches": 0}, "microbatches is 0: it must be a whole number of at least 1"),
    ({"microbatches": 2.5}, "microbatches is 2.5: it must be a whole number"),
    ({"microbatches": "4"}, "microbatches is '4': it must be a whole number"),
    ({"microbatches": True}, "microbatches is True: it must be a whole number"),
    ({"pipeline_parallel_degree": None}, "pipeline_parallel_degree is None: it must be a whole number"),
    ({"partitions": -1}, "pipeline_parallel_degree is -1: it must be a whole number of at least 1"),
    ({"active_microbatches": 0}, "active_microbatches is 0: it must be a whole number of at least 1"),
    ({"pipeline": "1f1b"}, "pipeline is '1f1b': it must be one of 'interleaved', 'simple'"),
    ({"optimize": "time"}, "optimize is 'time': it must be one of 'memory', 'speed'"),
    ({"placement_strategy": "DP"}, "placement_strategy is 'DP': it must be one of 'cluster', 'spread', 'DPT'"),
    ({"placement_strategy": 3}, "placement_strategy is 3: it must be one of"),
    ({"pipeline": ["simple"]}, r"pipeline is \['simple'\]: it must be one of"),
    ({"ddp": "yes"}, "ddp is 'yes': it must be true or false"),
    ({"ddp": 2}, "ddp is 2: it must be true or false"),
    ({"memory_weight": 1.5}, "memory_weight is 1.5: it must be a number from 0.0 to 1.0"),
    ({"memory_weight": float("nan")}, "memory_weight is nan: it must be a number from 0.0 to 1.0"),
    ({"microbatches": float("inf")}, "microbatches is inf: it must be a whole number"),
    ({"auto_partition": False}, "auto_partition is false and default_partition is not given"),
    (
        {"partitions": 2, "default_partition": 2},
        "default_partition is 2: it must be less than the number of partitions",
    ),
    ({"ddp_port": 80}, "ddp_port is given without ddp: set ddp to true, or remove ddp_port"),
    ({"ddp_dist_backend": "nccl"}, "ddp_dist_backend is given without ddp"),
    ({"ddp": True, "ddp_port": -1}, "ddp_port is -1: it must be a whole number from 0 to 65535"),
    ({"ddp": True, "ddp_dist_backend": "mpi"}, "ddp_dist_backend is 'mpi': it must be one of 'auto', 'nccl'"),
    ({"horovod": True}, "horovod is true: it is not for PyTorch, use ddp"),
    ({"horovod": True, "ddp": True}, "horovod is true: they exclude each other"),
    ({"tensor_parallel_degree": 2}, "tensor_parallel_degree is 2: it needs ddp to be true"),
    ({"fp16": True, "bf16": True}, "fp16 and bf16 are both true: choose one"),
    ({"sharded_data_parallel_degree": 2}, "sharded_data_parallel_degree is 2: it needs ddp to be true"),
    ({"load_partition": True}, "load_partition is true and partition_file is not given"),
    ({"partition_file": 3}, "partition_file is 3: it must be a string"),
    ({"partitions": 2, "pipeline_parallel_degree": 4}, "partitions is 2 and pipeline_parallel_degree is 4"),
    ({"micro_batches": 4}, "there is no parameter 'micro_batches': did you mean 'microbatches'"),
    ({"Partition": 4}, "there is no parameter 'Partition': did you mean 'partitions'"),
    (["microbatches"], "the configuration given to smp.init is a list: it must be a dictionary"),
    ("{", "the configuration given to smp.init is not JSON"),
    ("/nowhere/config.json", "'/nowhere/config.json': neither a JSON object nor the path of a file"),
]
SHARDED = {"ddp": True, "sharded_data_parallel_degree": 2}
WRONG += [
    (SHARDED | {"partitions": 2}, "sharded_data_parallel_degree is 2 and pipeline_parallel_degree is 2"),
    (SHARDED | {"shard_optimizer_state": True}, "sharded_data_parallel_degree is 2 and shard_optimizer_state is true"),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG)
def test_wrong_parameters_get_one_sentence(given: Any, sentence: str) -> None:
    """The rules of the SageMaker SDK and our own; statements 36 and 40 too."""
    with pytest.raises(SMPConfigError, match=sentence) as caught:
        load(given)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_what_json_and_the_sdk_let_through() -> None:
    cfg = from_values({"sdp_reduce_bucket_size": 5e8, "ddp": 1, "ddp_port": None, "partition_file": None})
    assert (cfg.sdp_reduce_bucket_size, type(cfg.sdp_reduce_bucket_size)) == (500_000_000, int)
    assert cfg.ddp is True
    assert from_values({"pipeline": "_only_forward"}).pipeline == "_only_forward"
    assert from_values({"partitions": 2, "pipeline_parallel_degree": 2}).partitions == 2
    assert from_values({"auto_partition": False, "default_partition": 0}).default_partition == 0


def test_a_parameter_of_no_version_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="the parameter '_fp32_grad_accumulation' is unknown and ignored"):
        assert from_values({"_fp32_grad_accumulation": True, "microbatches": 2}).microbatches == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_values(dict.fromkeys(["static_mode", "fast_mode", "delayed_parameter_initialization"], True))


def test_the_launcher_wins_over_the_script_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_HP_MP_PARAMETERS", '{"ddp":true,"microbatches":4,"partitions":2}')
    cfg = load({"microbatches": 8, "pipeline_parallel_degree": 4, "pipeline": "simple"})
    assert (cfg.microbatches, cfg.partitions, cfg.pipeline, cfg.ddp) == (4, 2, "simple", True)


@pytest.mark.parametrize("empty", ["", "{}"])
def test_an_empty_launch_changes_nothing(monkeypatch: pytest.MonkeyPatch, empty: str) -> None:
    monkeypatch.setenv("SM_HP_MP_PARAMETERS", empty)
    assert load({"microbatches": 8}).microbatches == 8


def test_broken_json_of_the_launcher_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_HP_MP_PARAMETERS", '{"ddp":')
    with pytest.raises(SMPConfigError, match="SM_HP_MP_PARAMETERS is not JSON"):
        load()


def test_a_file_and_a_text_hold_the_same(tmp_path: Path) -> None:
    values = {"microbatches": 4, "partitions": 2}
    path = tmp_path / "parameters.json"
    path.write_text(json.dumps(values))
    assert load(str(path)) == load(json.dumps(values)) == load(values)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load().microbatches = 3  # type: ignore[misc]


PAGE = Path(__file__).parents[2] / "docs" / "smp-config.md"


def test_the_page_has_every_parameter_with_its_default() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    page = {name.strip(" `"): default.strip() for name, default in rows}
    assert page.keys() == set(PARAMETERS)
    for name, default in page.items():
        if default.startswith("`"):
            assert name == "active_microbatches" or json.loads(default.split(",")[0].strip("`")) in (
                getattr(Config(), name),
                "cluster",
            ), name
        elif default[0].isdigit():
            assert float(default.split(",")[0]) == getattr(Config(), name), name
        else:
            assert getattr(Config(), name) is None, name


def test_what_changes_nothing_is_known() -> None:
    assert from_values({"static_mode": True, "fast_mode": False, "microbatches": 2}).ignored() == {"static_mode": True}


def test_every_other_parameter_is_read() -> None:
    """A parameter that nobody reads is one that silently does nothing."""
    own = Path(config.__file__)
    code = "".join(path.read_text(encoding="utf-8") for path in own.parent.rglob("*.py") if path != own)
    unread = {name for name in PARAMETERS if f"cfg.{name}" not in code}
    assert unread == set(WITHOUT_EFFECT)
