"""Every example as its README says, on the real image: that it learns, and that what it shows is so."""

import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PREPARE = EXAMPLES / "digits-lightning" / "prepare.py"


@dataclass(frozen=True)
class Ended:
    """A job that has run: what it printed, how it is described, what it left."""

    out: str
    err: str
    described: dict[str, Any]
    archive: Path
    model: Path

    @property
    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.model / "metrics.json").read_text())
        return found

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = torch.load(self.model / "model.pt", weights_only=True)
        return found


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channels") / "train"
    assert python(PREPARE, folder).returncode == 0
    return folder


@pytest.fixture
def run(channel: Path, tmp_path: Path) -> Callable[..., Ended]:
    """A function that runs a job file of a copy of an example's folder, and sees that it has completed."""

    def run(example: str, *options: str, job: str = "job.json") -> Ended:
        copy = tmp_path / "examples" / example
        if not copy.exists():
            shutil.copytree(EXAMPLES / example, copy, ignore=shutil.ignore_patterns("channels", "checkpoints"))
        name = f"{example.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
        data = ("--channel", f"train={channel}") if "InputDataConfig" in (copy / job).read_text() else ()
        done = python("-m", "shoal", "run", copy / job, "--job-name", name, *data, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        folder = tmp_path / "runs" / name
        described = json.loads((folder / "job.json").read_text())
        assert (described["TrainingJobStatus"], described.get("FailureReason")) == ("Completed", None)
        assert {host["ExitCode"] for host in described["Shoal"]["Hosts"]} == {0}
        archive, model = folder / "output" / "model.tar.gz", folder / "model"
        model.mkdir()
        subprocess.run(["tar", "xzf", archive, "-C", model], check=True)
        return Ended(done.stdout, done.stderr, described, archive, model)

    return run


def measured(ended: Ended, channel: Path, activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> float:
    """Measure the weights a job left, a stack of linear layers, with nothing of the example's own."""
    with np.load(channel / "test.npz") as arrays:
        values = torch.from_numpy(arrays["images"]).flatten(1) / 16.0
        labels = torch.from_numpy(arrays["labels"])
    tensors = list(ended.weights.values())
    layers = list(zip(tensors[::2], tensors[1::2], strict=True))
    for number, (weight, bias) in enumerate(layers, start=1):
        values = values @ weight.T + bias
        values = values if number == len(layers) else activation(values)
    return float((values.argmax(dim=1) == labels).double().mean())


def assert_it_learned(ended: Ended, channel: Path) -> None:
    """What the job says of its model is so, but for one image: other arithmetic may tip one."""
    claimed = ended.metrics["test_accuracy"]
    assert f"test_accuracy {claimed:.4f}" in ended.out
    assert measured(ended, channel) == pytest.approx(claimed, abs=1.5 / 360)
    assert claimed >= 0.95
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", ended.out)]
    assert losses[-1] < losses[0]


def test_lightning_on_smddp(run: Callable[..., Ended], channel: Path) -> None:
    ended = run("digits-lightning")
    assert ended.out.count("train_loss") == 20
    assert ended.metrics["world_size"] == 4
    verified = python(EXAMPLES / "digits-lightning" / "verify.py", ended.archive, channel, "--at-least", "0.95")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_native_ddp_on_smddp(run: Callable[..., Ended], channel: Path) -> None:
    ended = run("digits-ddp")
    assert_it_learned(ended, channel)
    assert (ended.metrics["world_size"], ended.metrics["backend"]) == (4, "smddp")
    assert re.findall(r"\[(\S+)\] epoch", ended.out) == ["algo-1:0"] * 10


def test_pytorchddp_takes_an_unchanged_script(run: Callable[..., Ended], channel: Path) -> None:
    ended = run("digits-pytorchddp")
    assert_it_learned(ended, channel)
    assert (ended.metrics["world_size"], ended.metrics["backend"]) == (4, "gloo")
    assert "smd" not in (EXAMPLES / "digits-pytorchddp" / "source" / "train.py").read_text().lower()


@pytest.mark.parametrize("job", ["job.json", "own-starter.json"])
def test_torchrun(run: Callable[..., Ended], channel: Path, job: str) -> None:
    ended = run("digits-torchrun", job=job)
    assert_it_learned(ended, channel)
    assert (ended.metrics["world_size"], ended.metrics["torchrun"]) == (4, True)
    kept = ended.metrics["optimizer_values"]
    assert all(kept)
    assert sum(kept) == 2 * sum(weight.numel() for weight in ended.weights.values())


def test_mpi_with_options_of_one_s_own(run: Callable[..., Ended], channel: Path) -> None:
    ended = run("digits-mpi")
    assert_it_learned(ended, channel)
    assert (ended.metrics["world_size"], ended.metrics["hosts"]) == (4, ["algo-1", "algo-2"])
    assert "4 ranks on algo-1 algo-2, NCCL_DEBUG=VERSION" in ended.out


def test_model_parallel(run: Callable[..., Ended], channel: Path) -> None:
    ended = run("digits-pipeline")
    assert set(re.findall(r"\[(\S+)\] epoch 10 ", ended.out)) == {"algo-1:0", "algo-1:1"}
    claimed = {float(found) for found in re.findall(r"test_accuracy (\S+)", ended.out)}
    assert len(claimed) == 1
    assert min(claimed) >= 0.9
    assert measured(ended, channel, torch.tanh) == pytest.approx(claimed.pop(), abs=1.5 / 360)


def test_parameter_server(run: Callable[..., Ended]) -> None:
    ended = run("parameter_server")
    before, after = (float(found) for found in re.findall(r"accuracy (\S+)", ended.out))
    assert before < 0.5
    assert after >= 0.95
    assert "after 800 updates" in ended.out
    assert len(ended.weights) == 4


@pytest.mark.timeout(600)
def test_a_spot_job_goes_on_at_the_epoch_it_had_reached(
    run: Callable[..., Ended], channel: Path, tmp_path: Path
) -> None:
    for seconds in ("12", "24", "36"):  # training lasts 20 s; how long it takes to begin depends on the machine
        shutil.rmtree(tmp_path / "examples" / "digits-spot" / "checkpoints", ignore_errors=True)
        ended = run("digits-spot", "--interrupt-after", seconds)
        if (stopped := re.search(r"told to stop: saved after epoch (\d+)", ended.out)) is not None:
            break
    else:
        pytest.fail(f"no epoch was interrupted:\n{ended.out}{ended.err}")
    reached = int(stopped[1])
    stages = [stage["Status"] for stage in ended.described["SecondaryStatusTransitions"]]
    assert stages == ["Starting", "Training", "Interrupted", "Starting", "Training", "Uploading", "Completed"]
    assert re.findall(r"beginning with epoch (\d+)", ended.out) == ["1", str(reached + 1)]
    assert [int(epoch) for epoch in re.findall(r"epoch (\d+) loss", ended.out)] == list(range(1, 41))
    assert ended.metrics["began_with_epoch"] == reached + 1
    assert_it_learned(ended, channel)

    shutil.rmtree(tmp_path / "examples" / "digits-spot" / "checkpoints")
    job = tmp_path / "examples" / "digits-spot" / "job.json"
    job.write_text(job.read_text().replace('"seconds_per_epoch": "0.5"', '"seconds_per_epoch": "0"'))
    unbroken = run("digits-spot")
    assert unbroken.metrics["began_with_epoch"] == 1
    assert all(torch.equal(weight, ended.weights[name]) for name, weight in unbroken.weights.items())
