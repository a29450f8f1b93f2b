"""Command lines as tables. Whole ones are compared in test_cases.py; here is what changes with one setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict, Unpack

import pytest
from shoal_entrypoint.launchers import mpi, mpirun, process, smddp, torchrun
from shoal_entrypoint.launchers.settings import Settings, environment_additions
from shoal_entrypoint.outcome import JobError

PROGRAM = ["python", "-m", "mpi4py", "train.py"]


SETTINGS = Settings(
    hosts=("algo-1", "algo-2"),
    current_host="algo-1",
    processes_per_host=8,
    interface="eth0",
    instance_type="ml.p4d.24xlarge",
    efa=False,
    program=PROGRAM,
    user_environment={},
    framework_parameters={},
)


class Changes(TypedDict, total=False):
    """The fields of Settings that tests change."""

    hosts: tuple[str, ...]
    current_host: str
    instance_type: str
    efa: bool
    program: list[str]
    user_environment: Mapping[str, str]
    framework_parameters: Mapping[str, object]
    smddprun: bool


def settings(**changes: Unpack[Changes]) -> Settings:
    return SETTINGS._replace(**changes)


def exports(argv: list[str]) -> list[str]:
    """What follows -x."""
    return [argv[index + 1] for index, word in enumerate(argv) if word == "-x"]


def test_smddp_on_two_hosts_without_efa() -> None:
    text = (
        "mpirun --host algo-1:8,algo-2:8 -np 16 --allow-run-as-root --tag-output --oversubscribe"
        " -mca btl_tcp_if_include eth0 -mca oob_tcp_if_include eth0 -mca plm_rsh_no_tree_spawn 1 -mca pml ob1"
        " -mca btl ^openib -mca orte_abort_on_non_zero_status 1 -mca btl_vader_single_copy_mechanism none"
        " -mca plm_rsh_num_concurrent 2 -x NCCL_SOCKET_IFNAME=eth0 -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH"
        " -x SMDATAPARALLEL_USE_HOMOGENEOUS=1 -x SMDATAPARALLEL_SERVER_ADDR=algo-1 -x SMDATAPARALLEL_SERVER_PORT=7592"
        " -x SAGEMAKER_INSTANCE_TYPE=ml.p4d.24xlarge smddprun python -m mpi4py train.py"
    )
    assert smddp.argv(settings(smddprun=True)) == text.split()


def test_smddp_on_one_host() -> None:
    argv = smddp.argv(settings(hosts=("algo-1",)))
    assert argv[1:5] == ["--host", "algo-1", "-np", "8"]
    assert "SMDATAPARALLEL_USE_SINGLENODE=1" in argv
    assert not any("SMDATAPARALLEL_SERVER" in word or "SAGEMAKER_INSTANCE_TYPE" in word for word in argv)
    assert argv[argv.index("plm_rsh_num_concurrent") + 1] == "1"
    assert "smddprun" not in argv


@pytest.mark.parametrize(
    ("efa", "instance_type", "expected"),
    [
        (False, "ml.p4d.24xlarge", set()),
        (True, "ml.m5.xlarge", {"FI_PROVIDER=efa", "RDMAV_FORK_SAFE=1"}),
        (True, "ml.g5.48xlarge", {"FI_PROVIDER=efa", "RDMAV_FORK_SAFE=1", "NCCL_PROTO=simple"}),
        (
            True,
            "ml.p5en.48xlarge",
            {"FI_PROVIDER=efa", "RDMAV_FORK_SAFE=1", "NCCL_PROTO=simple", "FI_EFA_USE_DEVICE_RDMA=1"},
        ),
    ],
)
def test_efa_settings_need_a_device(efa: bool, instance_type: str, expected: set[str]) -> None:
    found = exports(smddp.argv(settings(efa=efa, instance_type=instance_type)))
    assert {word for word in found if word.startswith(("FI_", "RDMAV", "NCCL_PROTO"))} == expected


@pytest.mark.parametrize("argv", [smddp.argv, mpi.argv])
def test_the_user_s_environment_wins(argv: Callable[[Settings], list[str]]) -> None:
    user = {"NCCL_SOCKET_IFNAME": "ens5", "NCCL_DEBUG": "TRACE", "FI_PROVIDER": "tcp"}
    found = exports(argv(settings(efa=True, user_environment=user)))
    assert {"NCCL_SOCKET_IFNAME=ens5", "NCCL_DEBUG=TRACE", "FI_PROVIDER=tcp"} <= set(found)


@pytest.mark.parametrize(
    ("text", "debug", "rest"),
    [
        ("", "INFO", []),
        ("-verbose -x NCCL_DEBUG=VERSION", "INFO", ["-verbose", "-x", "NCCL_DEBUG=VERSION"]),
        ("--NCCL_DEBUG WARN -x A=b", "WARN", ["-x", "A=b"]),
        ("--NCCL_DEBUG=WARN", "WARN", []),
        ("-x A='b c'", "INFO", ["-x", "A=b c"]),
    ],
)
def test_custom_options(text: str, debug: str, rest: list[str]) -> None:
    assert mpirun.custom_options(text, {}) == (debug, rest)


def test_custom_options_that_cannot_be_read_are_shown() -> None:
    with pytest.raises(JobError, match=r"custom_mpi_options: .*No closing quotation"):
        mpirun.custom_options("-x A='b", {})


@pytest.mark.parametrize("value", ["8", 8])
def test_a_number_of_processes_may_arrive_as_text(value: str | int) -> None:
    argv = mpi.argv(settings(framework_parameters={"sagemaker_mpi_num_processes": value}))
    assert argv[argv.index("-np") + 1] == "8"


def test_a_number_of_processes_that_is_none_is_refused() -> None:
    with pytest.raises(JobError, match="sagemaker_mpi_num_processes: a whole number of at least 1"):
        mpi.argv(settings(framework_parameters={"sagemaker_mpi_num_processes": "many"}))


def test_smddp_counts_one_slot_too() -> None:
    assert smddp.argv(settings()._replace(processes_per_host=1))[2] == "algo-1:1,algo-2:1"


@pytest.mark.parametrize(("instance_type", "rdma"), [("ml.g5.48xlarge", False), ("ml.p4d.24xlarge", True)])
def test_torchrun_s_ranks_read_gpu_memory_directly_only_where_that_works(instance_type: str, rdma: bool) -> None:
    values = environment_additions("torchrun", settings(efa=True, instance_type=instance_type))
    assert values["FI_PROVIDER"] == "efa"
    assert ("FI_EFA_USE_DEVICE_RDMA" in values, "RDMAV_FORK_SAFE" in values) == (rdma, rdma)


def test_one_slot_has_no_count() -> None:
    assert mpirun.hosts_option(("a", "b"), 1) == "a,b"
    assert mpirun.hosts_option(("a", "b"), 2) == "a:2,b:2"


def test_torchrun_names_the_master_only_with_several_hosts() -> None:
    one = torchrun.argv(settings(hosts=("algo-1",), program=["train.py"]))
    assert one == ["torchrun", "--nnodes", "1", "--nproc_per_node", "8", "train.py"]
    two = torchrun.argv(settings(current_host="algo-2", program=["train.py"]))
    assert two[5:] == ["--master_addr", "algo-1", "--master_port", "7777", "--node_rank", "1", "train.py"]


@pytest.mark.parametrize(
    ("options", "words", "ordered"),
    [
        (
            "--max-restarts=3 --log-dir 'my logs' --tee 3",
            ["--max-restarts=3", "--log-dir", "my logs", "--tee", "3"],
            True,
        ),
        ("--rdzv-backend c10d", ["--rdzv-backend", "c10d"], False),
        ("--rdzv_backend=c10d", ["--rdzv_backend=c10d"], False),
        ("--rdzv-conf timeout=9;x", ["--rdzv-conf", "timeout=9;x"], True),
        ("", [], True),
        (None, [], True),
    ],
)
def test_torchrun_s_options_come_last_before_the_script(options: str | None, words: list[str], ordered: bool) -> None:
    given = settings(program=["-m", "a.b", "--lr", "1"], framework_parameters={torchrun.OPTIONS: options})
    assert torchrun.argv(given)[-5 - len(words) :] == ["0", *words, "-m", "a.b", "--lr", "1"]
    assert torchrun.keeps_order(given) is ordered


@pytest.mark.parametrize("options", ["--tee '3", 7, ["--tee", "3"], True])
def test_torchrun_options_that_cannot_be_read_are_shown(options: object) -> None:
    with pytest.raises(JobError, match=f"^hyperparameters.json: {torchrun.OPTIONS}: .*: ") as caught:
        torchrun.argv(settings(framework_parameters={torchrun.OPTIONS: options}))
    assert "\n" not in caught.value.text


def test_process_starts_the_script_itself() -> None:
    assert process.argv(settings(program=["python", "--", "train.py"])) == ["python", "--", "train.py"]
