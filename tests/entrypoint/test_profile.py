"""The sampler and the step marks: what they write, and that they never matter to the job."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import SOURCE, Host, MakeCluster, until
from shoal_entrypoint.profile import gpus, group, machine
from shoal_entrypoint.profile.gpus import Gpus
from shoal_entrypoint.profile.group import Group
from shoal_entrypoint.profile.machine import Cores, Network, Rates
from shoal_entrypoint.profile.processes import Job
from shoal_entrypoint.profile.sampler import Writer
from shoal_entrypoint.profile.sampler import run as run_sampler
from shoal_entrypoint.steps import Steps

SLEEP = "import time; time.sleep(2.2)\n"
STEPS = """
from shoal_entrypoint.steps import steps
import time
for item in steps(range(5)):
    with steps.collective(100):
        time.sleep(0.01)
"""
# The functions of NVML that are called, with the signatures of its header, for two GPUs of which one tells little.
NVML = """
#include <stdint.h>
typedef struct { unsigned gpu, memory; } use_t;
typedef struct { unsigned long long total, free, used; } memory_t;
static int devices[2];
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &devices[index]; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, use_t *use) { use->gpu = 37; use->memory = 99; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
  memory->total = 80ull << 30; memory->free = 60ull << 30; memory->used = 20ull << 30; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
  *milliwatts = 250500; return device == &devices[1] ? 3 : 0; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
  *mhz = 1000 + kind; return device == &devices[1] ? 3 : 0; }
"""


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of all files of a folder; every one must be whole."""
    return [json.loads(line) for file in sorted(path.rglob("*.json*")) for line in file.read_text().splitlines()]


@pytest.fixture
def run(cluster: MakeCluster) -> Callable[..., Host]:
    one = cluster(1)

    def go(script: str, env: dict[str, str], mounts: str = "", unprivileged: bool = False) -> Host:
        one.job({}, script)
        if unprivileged:
            one.hosts[0].start_unprivileged({"PYTHONPATH": str(SOURCE), **env})
        else:
            one.hosts[0].start({"PYTHONPATH": str(SOURCE), **env}, mounts)
        return one.hosts[0]

    return go


def test_every_job_is_measured(run: Callable[..., Host]) -> None:
    host = run(SLEEP + STEPS, {"SHOAL_PROFILE_INTERVAL_MS": "100"})
    assert host.wait() == 0, host.stderr
    assert host.succeeded
    folder = host.ml / "output" / "profiler"
    values = read(folder / "system")
    assert {value["NodeId"] for value in values} == {"algo-1"}
    names = {value["Name"] for value in values}
    assert {"MemoryUsedPercent", "ReceiveBytesPerSecond", "TransmitBytesPerSecond", "cores", "loaders"} <= names
    assert {f"cpu{number}" for number in os.sched_getaffinity(0)} <= names
    assert len({value["Timestamp"] for value in values}) > 3
    for path in (folder / "system").rglob("*.json"):
        assert path.name.endswith(".algo-1.json")
        assert int(path.name.partition(".")[0]) % 60 == 0
        assert path.parent.name == time.strftime("%Y%m%d%H", time.gmtime(int(path.name.partition(".")[0])))
    steps = read(folder / "steps")
    assert [(step["NodeId"], step["Rank"], step["Step"]) for step in steps] == [("algo-1", 0, n) for n in range(5)]
    assert all(0 < step["CollectiveSeconds"] <= step["Seconds"] for step in steps)
    assert [step["CollectiveBytes"] for step in steps] == [100] * 5
    about = json.loads((folder / "environment" / "algo-1.json").read_text())
    assert (about["NodeId"], about["Python"]) == ("algo-1", platform.python_version())
    assert about["Packages"]["torch"] == importlib.metadata.version("torch")
    assert not host.alive
    assert host.processes() == []


def test_the_shortest_job_has_a_sample_and_no_word_of_it_in_its_log(run: Callable[..., Host]) -> None:
    """And its files are as those that the job itself writes: here, of a user who is not root."""
    host = run("print('trained')\n", {}, unprivileged=True)
    assert host.wait() == 0, host.stderr
    assert "MemoryUsedPercent" in {value["Name"] for value in read(host.ml / "output" / "profiler" / "system")}
    assert host.stdout == "trained\n"
    assert "PROFILE" not in host.stderr
    written = [host.ml / "output" / "success", *(host.ml / "output" / "profiler").rglob("*")]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(1000, 1000)}


def test_switched_off_there_is_neither_process_nor_folder(run: Callable[..., Host]) -> None:
    script = "import subprocess; print(subprocess.run(['ps', 'axww'], capture_output=True, text=True).stdout)\n"
    off = run(script + STEPS, {"SHOAL_PROFILE": "0"})
    assert off.wait() == 0, off.stderr
    assert off.succeeded
    assert "train.py" in off.stdout
    assert "profile.sampler" not in off.stdout
    assert not (off.ml / "output" / "profiler").exists()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_job_depends_on_its_sampler_in_nothing(run: Callable[..., Host], name: str) -> None:
    """Neither on one that has died, nor on one that hangs, as in a driver that answers no more."""
    script = f"""
import os, signal, time
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"profile.sampler" in open(f"/proc/{{pid}}/cmdline", "rb").read():
        os.kill(int(pid), signal.{name})
        print("{name} to the sampler", flush=True)
{SLEEP}"""
    host = run(script, {})
    assert host.wait() == 0, host.stderr
    assert host.succeeded
    assert f"{name} to the sampler" in host.stdout
    assert not host.alive


_FULL = """mkdir -p /opt/ml/output/profiler
mount -t tmpfs -o size=4k tmpfs /opt/ml/output/profiler
{ head -c 100000 /dev/zero > /opt/ml/output/profiler/full; } 2>/dev/null || true"""


@pytest.mark.parametrize(
    ("mounts", "lines"),
    [
        ("mkdir -p /opt/ml/output && touch /opt/ml/output/profiler", 1),
        ("mkdir -p /opt/ml/output/profiler && mount -t tmpfs -o ro tmpfs /opt/ml/output/profiler", 1),
        (_FULL, 0),
    ],
    ids=["taken by a file", "read-only", "full"],
)
def test_a_folder_that_cannot_be_written_costs_the_measurements_alone(
    run: Callable[..., Host], mounts: str, lines: int
) -> None:
    host = run("import time; time.sleep(0.5); print('trained')\n", {}, mounts=mounts)
    assert host.wait() == 0, host.stderr
    assert host.succeeded
    assert host.stdout == "trained\n"
    assert host.stderr.count("SHOAL_PROFILE: nothing is measured on this host") == lines
    assert "Traceback" not in host.stderr


@pytest.mark.parametrize(
    ("env", "failure"),
    [
        ({"SHOAL_PROFILE_INTERVAL_MS": "5"}, "SHOAL_PROFILE_INTERVAL_MS: '5': a number from 100 to 60000 was expected"),
        ({"SHOAL_PROFILE_INTERVAL_MS": "9" * 5000}, "a number from 100 to 60000 was expected"),
        ({"SHOAL_PROFILE": "yes"}, "SHOAL_PROFILE: 'yes': 1 or nothing (measure), or 0 (do not) was expected"),
    ],
)
def test_what_is_no_interval_and_no_switch(run: Callable[..., Host], env: dict[str, str], failure: str) -> None:
    host = run("print()\n", env)
    assert host.wait() == 1
    assert failure in host.failure
    assert len(host.failure) < 400


def test_the_sampler_ends_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from shoal_entrypoint.profile.sampler import main; main()"
    )
    argv = [sys.executable, "-I", "-S", "-c", program, str(SOURCE), str(tmp_path), "algo-3", "100"]
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, time; subprocess.Popen({argv!r}, stdin=subprocess.PIPE); time.sleep(60)",
        ]
    )
    until(lambda: bool(list(tmp_path.rglob("*.algo-3.json"))))
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    def lives() -> bool:
        return any(str(tmp_path).encode() in _command(path) for path in Path("/proc").glob("[0-9]*"))

    until(lambda: not lives())


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), "algo-1")
    (tmp_path / "system").write_text("in the way")
    writer.write(1_700_000_000.0, [("cpu", "cpu0", "CPUUtilization", 1.0)])
    (tmp_path / "system").unlink()
    writer.write(1_700_000_001.5, [("cpu", "cpu0", "CPUUtilization", 2.0)])
    writer.close()
    assert [value["Value"] for value in read(tmp_path)] == [2.0]


def test_a_sampler_that_is_late_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample takes longer than the interval, as on a full machine, and the clock moves while it is read."""

    class Slow:
        def sample(self, _now: float) -> list[tuple[str, str, str, float]]:
            time.sleep(0.01)
            return [("cpu", "cpu0", "CPUUtilization", 1.0)]

    for module, name in ((machine, "Cores"), (machine, "Network"), (group, "Group"), (gpus, "Gpus")):
        monkeypatch.setattr(module, name, Slow)
    clock, real = iter(range(10**6)), time.monotonic
    monkeypatch.setattr("shoal_entrypoint.profile.sampler.time.monotonic", lambda: real() + next(clock))
    read_end, write_end = os.pipe()
    threading.Timer(0.5, os.close, (write_end,)).start()
    writer = Writer(str(tmp_path), "algo-1")
    run_sampler(writer, 0.001, read_end, os.getpid())
    writer.close()
    os.close(read_end)
    assert len(read(tmp_path)) > 8


def test_a_busy_core_is_seen() -> None:
    cores = Cores()
    cores.sample(0)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        pass
    values = cores.sample(0)
    assert max(value for _, _, dimension, value in values if dimension == "CPUUtilization") > 30
    assert all(0 <= value <= 100 for *_, value in values)


def test_what_goes_over_the_loop_is_no_traffic() -> None:
    network = Network()
    assert network.sample(1.0) == []
    assert {name for _, name, _, _ in network.sample(2.0)} == {"ReceiveBytesPerSecond", "TransmitBytesPerSecond"}


def test_rates() -> None:
    rates = Rates()
    assert rates.of({"a": 5}, 1.0) == {}
    assert rates.of({"a": 9, "new": 3}, 3.0) == {"a": 2.0}
    assert rates.of({"a": 1, "new": 4}, 4.0) == {"new": 1.0}  # a counter that began anew


def test_limits_of_a_group_are_its_measure(tmp_path: Path) -> None:
    """cgroup v2 with half a core and 1 GiB, of which a quarter is page cache that can go."""
    files = {
        "cgroup.controllers": "cpu memory io",
        "cpu.max": "50000 100000",
        "cpu.stat": "usage_usec 1000000\nuser_usec 1\n",
        "memory.max": str(1 << 30),
        "memory.current": str(3 << 28),
        "memory.stat": f"anon 5\ninactive_file {1 << 28}\n",
        "io.stat": "8:0 rbytes=1000 wbytes=0 rios=1 wios=0 dbytes=0\n8:16 rbytes=500 wbytes=70 rios=2 wios=1\n",
        "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 total=0\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    seen = Group(str(tmp_path), "0::/")
    assert seen.cores == 0.5
    first = {name: value for _, name, _, value in seen.sample(10.0)}
    assert first == {"cores": 0.5, "MemoryUsedPercent": 50.0}
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\n")
    (tmp_path / "io.stat").write_text(
        "8:0 rbytes=5000 wbytes=0 rios=9 wios=0\n8:16 rbytes=500 wbytes=70 rios=2 wios=1\n"
    )
    (tmp_path / "io.pressure").write_text("some avg10=0.00 total=400000\nfull total=0\n")
    second = {name: value for _, name, _, value in seen.sample(12.0)}
    assert second["CPUOfLimit"] == 50.0
    assert second["ReadThroughputInBytesPerSecond"] == 2000
    assert second["IOPS"] == 4
    assert second["io"] == pytest.approx(20.0)


def test_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        "cpuacct/cpuacct.usage": "1000000000",
        "cpu/cpu.cfs_quota_us": "25000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/job/memory.limit_in_bytes": str(1 << 30),
        "memory/job/memory.usage_in_bytes": str(3 << 28),
        "memory/job/memory.stat": f"total_inactive_file {1 << 29}\n",
        "blkio/blkio.throttle.io_service_bytes": "8:0 Read 1000\n8:0 Write 5\n8:0 Total 1005\nTotal 1005\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = Group(str(tmp_path), "4:memory:/job\n2:cpuacct:/elsewhere\n1:cpu:/\n")
    assert {name: value for _, name, _, value in seen.sample(1.0)} == {"cores": 0.25, "MemoryUsedPercent": 25.0}
    (tmp_path / "cpuacct/cpuacct.usage").write_text("1100000000")
    assert {name: value for _, name, _, value in seen.sample(2.0)}["CPUOfLimit"] == pytest.approx(40.0)


def test_loaders_are_told_from_ranks() -> None:
    """A forked process of a Python program is a loader; one that was executed is none."""
    program = """
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
children = []
for _ in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        time.sleep(60)
print("ready", flush=True)
sys.stdin.read()
for child in children:
    os.kill(child, 9)
other.kill()
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    lines = [child.stdout.readline()]
    job = Job(os.getpid())
    found = {name: value for _, name, _, value in job.sample(10.0)}
    assert lines == ["ready\n"]
    assert found["loaders"] == 2
    assert job.sample(11.0) == []
    later = {(name, dimension) for _, name, dimension, _ in job.sample(20.0)}
    assert {("others", "CPUPercentage"), ("read", "BytesPerSecond")} <= later
    child.stdin.close()
    child.wait()


def test_gpus_through_a_library_of_the_same_interface(tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "nvml.c"), "-o", str(library)], check=True)
    values = Gpus(str(library)).sample(0.0)
    assert values[:4] == [
        ("gpu", "gpu0", "GPUUtilization", 37),
        ("gpu", "gpu0", "GPUMemoryUtilization", 25.0),
        ("gpu", "gpu0", "PowerWatts", 250.5),
        ("gpu", "gpu0", "ClockMHz", 1001),
    ]
    assert [dimension for _, name, dimension, _ in values[4:]] == ["GPUUtilization", "GPUMemoryUtilization"]
    assert Gpus("libthere-is-none.so").sample(0.0) == []


def test_steps_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_HOSTS", '["a", "b"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "b")
    monkeypatch.setenv("RANK", "7")
    steps = Steps(str(tmp_path))
    for _ in range(3):
        with steps.step():
            with steps.data():
                time.sleep(0.002)
            with steps.checkpoint():
                time.sleep(0.002)
    found = read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["algo-2-7.jsonl"]
    assert [(step["NodeId"], step["Rank"], step["Step"]) for step in found] == [("algo-2", 7, n) for n in range(3)]
    for step in found:
        assert 0.002 <= step["DataSeconds"] <= step["Seconds"]
        assert "CollectiveSeconds" not in step  # nobody measured it


def test_marks_leave_nothing_where_nothing_is_measured(tmp_path: Path) -> None:
    steps = Steps(str(tmp_path / "none"))
    assert list(steps(range(3))) == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []


def test_the_script_s_own_exception_passes(tmp_path: Path) -> None:
    steps = Steps(str(tmp_path))
    with pytest.raises(KeyError), steps.step(), steps.collective(1):
        raise KeyError


def test_lightning_s_batches_are_steps(tmp_path: Path) -> None:
    """In a process of its own: Lightning takes seconds to import, and brings its own handlers."""
    program = f"""
import sys, time, torch
sys.path.insert(0, {str(SOURCE)!r})
import lightning.pytorch as pl
from shoal_entrypoint.steps import Steps, lightning_callback

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, number):
        time.sleep(0.02)
        return torch.ones(4)

trainer = pl.Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False, default_root_dir={str(tmp_path)!r},
                     callbacks=[lightning_callback(Steps({str(tmp_path)!r}))])
trainer.fit(Model(), torch.utils.data.DataLoader(Slow(), batch_size=2))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = read(tmp_path)
    assert [step["Step"] for step in found] == list(range(6))
    assert all(0 <= step["DataSeconds"] <= step["Seconds"] for step in found)
    assert sum(step["DataSeconds"] for step in found) > 0.1  # most of the 0.24 s that the samples take
