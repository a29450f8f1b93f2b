"""The parts of `train --check` that the machine at hand cannot show: other devices, kernels and clocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from shoal_entrypoint.check import (
    accelerators,
    clock,
    interface,
    machine,
    meeting,
    names,
    storage,
    summary,
    table,
    tools,
)
from shoal_entrypoint.check.row import Row, size
from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.paths import Paths

MB, GB = 1 << 20, 1 << 30


def tree(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (64 * MB, "64 MB"), (1.5 * GB, "1.5 GB"), (5000 * 1024 * GB, "5000 TB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


ROWS = [Row("hosts", "ok", "one two three"), Row("shared_memory", "problem", "none", "Give it some, do give it some.")]


def test_the_table() -> None:
    assert table.render("title", ROWS).splitlines() == [
        "title",
        "ok       hosts          one two three",
        "problem  shared_memory  none",
        "                        -> Give it some, do give it some.",
        "1 problem",
    ]


def test_the_table_wraps_and_colours() -> None:
    text = table.render("title", ROWS, colour=True, width=44)
    assert "\033[1;31mproblem\033[0m  shared_memory  none" in text
    assert "-> Give it some, do give it\n                           some.\n" in text


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "=eth", "eth0", False),
        ("NCCL_SOCKET_IFNAME", "=eth0", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "lo", False),
        ("NCCL_SOCKET_IFNAME", "^=eth,lo", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "ib,eth", "eth0", True),
        ("GLOO_SOCKET_IFNAME", "eth", "eth0", False),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", "eth1", True),
    ],
)
def test_which_interfaces_a_setting_means(variable: str, value: str, name: str, expected: bool) -> None:
    assert interface.matches(variable, value, name) == expected


def test_an_interface_without_a_link_has_no_speed(tmp_path: Path) -> None:
    net = tree(tmp_path, {"ens5/speed": "-1\n", "ens5/mtu": "9001\n"})
    row = interface.interface("ens5", "ens5", several=False, net=net)
    assert (row.state, row.values["speed_mbit"], row.values["mtu"]) == ("ok", None, 9001)
    gone = interface.interface("eth0", "eth0", several=True, net=net)
    assert (gone.state, gone.text) == ("problem", "eth0: there is none of this name, but ens5")
    assert interface.interface("eth0", "lo", several=True, net=tree(tmp_path, {"lo/mtu": "1"})).state == "problem"


MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        ({}, 16 * GB, 8 * GB),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 16 * GB, 8 * GB),
        ({"memory.max": f"{2 * GB}\n", "memory.current": f"{GB}\n"}, 2 * GB, GB),
        ({"memory/memory.limit_in_bytes": f"{2 * GB}", "memory/memory.usage_in_bytes": "0"}, 2 * GB, 2 * GB),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, 16 * GB, 8 * GB),
    ],
)
def test_memory(tmp_path: Path, files: dict[str, str], total: int, free: int) -> None:
    meminfo = tree(tmp_path, {"meminfo": MEMINFO}) / "meminfo"
    (row,) = machine.memory(tree(tmp_path / "cgroup", files) if files else tmp_path / "none", meminfo)
    assert (row.state, row.values["total_bytes"], row.values["free_bytes"]) == ("ok", total, free)


def test_little_memory(tmp_path: Path) -> None:
    cgroup = tree(tmp_path, {"memory.max": str(GB), "memory.current": "0", "memory.events": "oom 3\noom_kill 2\n"})
    meminfo = tree(tmp_path, {"meminfo": MEMINFO}) / "meminfo"
    little, kills = machine.memory(cgroup, meminfo, processes=2)
    assert (little.state, kills.state, kills.values["oom_kills"]) == ("note", "note", 2)
    too_little, _ = machine.memory(cgroup, meminfo, processes=8)
    assert too_little.state == "problem"
    assert too_little.advice


LIMITS = {"nofile": 65536, "memlock": 64 << 10, "nproc": -1, "stack": 8 * MB}


@pytest.mark.parametrize(
    ("changed", "rdma", "root", "states"),
    [
        ({}, False, True, ["ok"]),
        ({}, True, True, ["problem"]),
        ({"memlock": -1}, True, True, ["ok"]),
        ({"nofile": 1024}, False, True, ["note"]),
        ({"nofile": 64}, False, True, ["problem"]),
        ({"nproc": 100}, False, True, ["ok"]),
        ({"nproc": 100, "stack": 65536}, False, False, ["note", "note"]),
        (dict.fromkeys(LIMITS, -1), True, False, ["ok"]),
    ],
)
def test_limits(changed: dict[str, int], rdma: bool, root: bool, states: list[str]) -> None:
    assert [row.state for row in machine.limits({**LIMITS, **changed}, rdma, root)] == states


def room(total: int, free: int, read_only: bool = False) -> storage.Room:
    return storage.Room(total, free, 0, 0, read_only)


@pytest.mark.parametrize(
    ("found", "processes", "mpi", "gpus", "state"),
    [
        (None, 1, False, 0, "problem"),
        (room(64 * MB, 64 * MB), 1, False, 0, "ok"),
        (room(64 * MB, 64 * MB), 2, False, 0, "note"),
        (room(64 * MB, 64 * MB), 1, False, 1, "note"),
        (room(64 * MB, 64 * MB), 32, True, 0, "problem"),  # 4 MB for each rank of Open MPI
        (room(GB, GB), 32, True, 8, "ok"),
        (room(GB, 8 * MB), 1, False, 0, "problem"),  # somebody has filled it
        (room(GB, GB, read_only=True), 1, False, 0, "problem"),
    ],
)
def test_shared_memory(found: storage.Room | None, processes: int, mpi: bool, gpus: int, state: str) -> None:
    row = storage.shared_memory(found, processes, mpi, smddp=False, gpus=gpus)
    assert row.state == state
    assert bool(row.advice) == (state != "ok")


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2026\n"
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"


@pytest.mark.parametrize(
    ("nodes", "version", "torch", "state", "driver"),
    [
        ([], None, None, "ok", None),
        ([], DRIVER, None, "note", "550.163.01"),
        (["nvidia0", "nvidiactl", "nvidia-uvm"], DRIVER, "2.13.0+cu130", "ok", "550.163.01"),
        (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], OPEN_DRIVER, "2.13.0", "ok", "570.86.15"),
        (["nvidia0", "nvidiactl"], DRIVER, None, "problem", "550.163.01"),
        (["nvidia0", "nvidiactl", "nvidia-uvm"], DRIVER, "2.13.0+cpu", "problem", "550.163.01"),
    ],
)
def test_gpus(
    tmp_path: Path, nodes: list[str], version: str | None, torch: str | None, state: str, driver: str | None
) -> None:
    dev = tree(tmp_path / "dev", {**dict.fromkeys(nodes, ""), "null": ""})
    proc = tree(tmp_path / "proc", {} if version is None else {"version": version})
    count = sum(node[-1].isdigit() for node in nodes)
    row = accelerators.gpus(count, torch, dev, proc)
    assert (row.state, row.values["driver"], row.values["count"]) == (state, driver, count)
    assert bool(row.advice) == (state != "ok")


def test_neuron(tmp_path: Path) -> None:
    dev = tree(tmp_path, {"neuron0": "", "neuron1": ""})
    assert accelerators.neuron(4, dev).text == "4 cores on 2 device(s)"
    assert accelerators.neuron(0, dev).state == "problem"


@pytest.mark.parametrize(
    ("devices", "files", "forced", "state", "says"),
    [
        ([], [], None, "ok", "none"),
        ([], [], "1", "problem", "SHOAL_EFA=1"),
        (["mlx5_0"], [], None, "ok", "mlx5_0"),
        (["efa_0"], [], None, "problem", "no /dev/infiniband/uverbs*"),
        (["efa_0"], ["dev/uverbs0"], None, "problem", "no libfabric.so.1"),
        (["efa_0"], ["dev/uverbs0", "lib/libfabric.so.1"], None, "note", "libfabric.so.1"),
        (["efa_0"], ["dev/uverbs0", "lib/libfabric.so.1"], "0", "note", "not used"),
    ],
)
def test_efa(tmp_path: Path, devices: list[str], files: list[str], forced: str | None, state: str, says: str) -> None:
    tree(tmp_path, {**{f"sys/{name}/ports": "" for name in devices}, **dict.fromkeys(files, "")})
    environ = {} if forced is None else {"SHOAL_EFA": forced}
    row = accelerators.efa(environ, tmp_path / "sys", tmp_path / "dev", (str(tmp_path / "lib"),))
    assert row.state == state
    assert says in row.text
    assert row.state != "problem" or row.advice


def barriers(ahead: float, delays: list[tuple[float, float]]) -> tuple[list[list[float]], list[list[float]]]:
    """Stamps of two hosts around the same barriers; the second's clock is `ahead`, its way there and back `delays`."""
    first, other, now = [], [], 100.0
    for there, back in delays:
        arrived = now + there
        first.append([now, arrived])
        other.append([now + ahead, arrived + back + ahead])
        now = arrived + back + 0.001
    return first, other


@pytest.mark.parametrize("ahead", [0.0, 2.5, -400.0])
@pytest.mark.parametrize("delays", [[(0.01, 0.01)], [(0.5, 0.01), (0.01, 0.02), (0.3, 0.3)]])
def test_the_offset_is_within_its_error(ahead: float, delays: list[tuple[float, float]]) -> None:
    measured = clock.offset(*barriers(ahead, delays))
    assert measured is not None
    assert abs(measured.seconds - ahead) <= measured.error + 1e-9
    assert measured.error <= min(there + back for there, back in delays)


def test_a_clock_that_is_set_meanwhile_gives_an_answer() -> None:
    assert clock.offset([[0, 1], [2, 3]], [[0, 1], [52, 53]]) is not None
    assert clock.offset([], [[0.0, 1.0]]) is None


@pytest.mark.parametrize(
    ("seconds", "error", "state"),
    [(0.2, 0.1, "ok"), (1.5, 0.1, "note"), (1.5, 1.0, "ok"), (-1.5, 0.1, "note"), (-301, 0.5, "problem")],
)
def test_what_an_offset_means(seconds: float, error: float, state: str) -> None:
    row = clock.row({"b": clock.Offset(0.0, 0.1), "c": clock.Offset(seconds, error)}, "a")
    assert row.state == state
    assert "c is" in row.text
    assert bool(row.advice) == (state != "ok")


def test_slow_and_lost_names() -> None:
    slow = names.row({"a": names.Answer(["10.0.0.1"], 0.1), "b": names.Answer(["10.0.0.2"], 5.0)})
    assert (slow.state, "5000.0 ms at most (b)" in slow.text) == ("note", True)
    many = names.row({f"h{index}": names.Answer([], 0.0) for index in range(500)})
    assert many.text == "h0; h1; h2; h3; h4 and 495 more: not resolved"


def test_a_resolver_that_never_answers_ends_the_wait() -> None:
    answers = names.look_up(["a", "b"], lambda done, seconds: None)
    assert {*answers} == {"a", "b"}


def test_agreement() -> None:
    same = meeting.compare({"a": {"mtu": 1500, "gpus": 0}, "b": {"mtu": 1500, "gpus": 0}}, "a")
    assert [(row.state, row.text) for row in same] == [("ok", "the same on all hosts: MTU, GPUs")]
    mixed = meeting.compare({"a": {"mtu": 1500, "gpus": 0}, "b": {"mtu": [1], "gpus": 8}, "c": {}}, "a")
    assert [row.state for row in mixed] == ["problem", "note"]


def test_what_a_launcher_needs() -> None:
    def wanted(launcher: str, hosts: int, leads: bool, mpi4py: bool = True) -> list[str]:
        return [need.name for need in tools.needs(launcher, hosts, leads, mpi4py)]

    assert wanted("process", 2, True) == []
    assert wanted("torchrun", 2, True) == ["torchrun"]
    assert wanted("mpi", 1, True) == ["mpirun", "mpi4py"]
    assert wanted("smddp", 2, True) == ["mpirun", "mpi4py", "ssh", "ssh-keygen"]
    assert wanted("smddp", 2, False, mpi4py=False) == ["mpirun", "sshd", "ssh-keygen"]


def test_the_summary(tmp_path: Path) -> None:
    raw = {"found_by": "Slurm"}
    resource = Resource(raw, "n2", ("n1", "n2"), "local", "group", "eth0", ())
    env = {"SM_NETWORK_INTERFACE_NAME": "ib0", "SM_NUM_CPUS": "96", "SM_NUM_GPUS": "8", "SM_NUM_NEURONS": "0"}
    lines = summary.lines(resource, "torchrun", 8, env, True, Paths(tmp_path, tmp_path), str(tmp_path / "none"))
    assert lines[0] == "n2 is host 2 of 2 (Slurm), ib0, 96 CPUs, 8 GPUs, EFA, torchrun x 8, no /dev/shm"
    # Nobody had named eth0, so that its absence is no news.
    assert not any("eth0" in line for line in lines)
