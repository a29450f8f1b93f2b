"""The digits example without containers: the same data every time, four ranks that learn, an honest check."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits-lightning"


def python(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channels") / "train"
    done = python(EXAMPLE / "prepare.py", folder)
    assert done.returncode == 0, done.stderr
    return folder


def archive(folder: Path, **files: bytes) -> Path:
    path = folder / "model.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_the_split_is_complete_and_the_same_every_time(channel: Path, tmp_path: Path) -> None:
    assert python(EXAMPLE / "prepare.py", tmp_path).returncode == 0
    images = []
    for split, count in (("train", 1257), ("validation", 180), ("test", 360)):
        with np.load(channel / f"{split}.npz") as one, np.load(tmp_path / f"{split}.npz") as other:
            assert one["images"].shape == (count, 8, 8)
            assert (one["images"] == other["images"]).all()
            assert (one["labels"] == other["labels"]).all()
            images.append(one["images"].reshape(count, 64))
    from sklearn.datasets import load_digits

    def in_order(pixels: np.ndarray) -> list[list[int]]:
        return sorted(pixels.astype(int).tolist())

    assert in_order(np.concatenate(images)) == in_order(load_digits().data)


@pytest.mark.parametrize(("claim_off_by", "code"), [(0.0, 0), (0.01, 1)])
def test_verify_believes_only_what_it_measures(channel: Path, tmp_path: Path, claim_off_by: float, code: int) -> None:
    shapes = {"1": (128, 64), "3": (128, 128), "5": (10, 128)}
    weights = {f"layers.{i}.weight": torch.zeros(shape) for i, shape in shapes.items()}
    weights |= {f"layers.{i}.bias": torch.zeros(shape[0]) for i, shape in shapes.items()}
    weights["layers.5.bias"][3] = 1.0  # names every image a three
    with np.load(channel / "test.npz") as arrays:
        accuracy = float((arrays["labels"] == 3).mean())
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    metrics = json.dumps({"test_accuracy": accuracy + claim_off_by}).encode()
    done = python(EXAMPLE / "verify.py", archive(tmp_path, model_pt=buffer.getvalue(), metrics_json=metrics), channel)
    assert done.returncode == code, done.stderr
    assert f"{accuracy:.4f} measured here" in done.stdout


@pytest.mark.slow
def test_four_ranks_learn_over_smddp(channel: Path, tmp_path: Path) -> None:
    pytest.importorskip("smdistributed.dataparallel")
    done = python(
        *("-m", "torch.distributed.run", "--nproc_per_node", "4", EXAMPLE / "source" / "train.py"),
        *("--train", channel, "--model_dir", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["epoch", str(i + 1)] for i in range(20)]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["world_size"] == 4
    assert metrics["test_accuracy"] >= 0.95
    assert lines[-1] == f"test_accuracy {metrics['test_accuracy']:.4f}"
    files = {f"{name.replace('.', '_')}": (tmp_path / name).read_bytes() for name in ("model.pt", "metrics.json")}
    assert python(EXAMPLE / "verify.py", archive(tmp_path, **files), channel).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.json", "model.pt", "model.tar.gz"]
