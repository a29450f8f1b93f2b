"""The tutorial (docs/smp.md, examples/digits-pipeline): ten changed lines, the same training."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from smp_jobs import clean_environment, run_ranks

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "digits-pipeline"
PLAIN, TRAIN = EXAMPLE / "source" / "plain.py", EXAMPLE / "source" / "train.py"
EPOCHS = 2


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "train"
    prepare = ROOT / "examples" / "digits-lightning" / "prepare.py"
    subprocess.run([sys.executable, str(prepare), str(folder)], check=True, capture_output=True, timeout=120)
    return folder


def arguments(channel: Path, model_dir: Path) -> list[str]:
    return ["--train", str(channel), "--model-dir", str(model_dir), "--epochs", str(EPOCHS)]


def changed() -> list[str]:
    """The lines of train.py that are not in plain.py, without the docstring."""
    before, after = (path.read_text().splitlines()[1:] for path in (PLAIN, TRAIN))
    return [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]


def test_ten_lines_change() -> None:
    assert len(changed()) == 10
    kept = [line for line in PLAIN.read_text().splitlines() if line in TRAIN.read_text().splitlines()]
    assert len(PLAIN.read_text().splitlines()) - len(kept) == 7, (
        "six lines are replaced and the docstring; none is lost"
    )


def test_the_page_shows_the_lines() -> None:
    """What docs/smp.md says is changed is what is changed."""
    page = (ROOT / "docs" / "smp.md").read_text()
    shown = re.findall(r"^\+(?!\+)(.*)$", page, flags=re.M)
    assert [line.strip() for line in shown] == [line.strip() for line in changed()]


def test_both_scripts_train_alike(channel: Path, tmp_path: Path) -> None:
    """C1, C5, C9, statements 2 and 6: losses, accuracy and weights are those of one process, on every rank."""
    folders = [tmp_path / "plain", tmp_path / "smp"]
    for folder in folders:
        folder.mkdir()
    words = arguments(channel, folders[0])
    alone = subprocess.run(
        [sys.executable, str(PLAIN), *words], env=clean_environment(), capture_output=True, text=True, timeout=200
    )
    assert alone.returncode == 0, alone.stderr
    config = json.loads((EXAMPLE / "job.json").read_text())["HyperParameters"]["mp_parameters"]
    ranks = run_ranks(TRAIN, 2, *arguments(channel, folders[1]), config=config, limit=200)
    expected = [float(word) for word in re.findall(r"(?:loss|accuracy) ([\d.]+)", alone.stdout)]
    assert len(expected) == EPOCHS + 1
    for rank in ranks:
        found = [float(word) for word in re.findall(r"(?:loss|accuracy) ([\d.]+)", rank.stdout)]
        # Micro-batches add the same numbers in another order.
        assert found == pytest.approx(expected, abs=2e-3)
    assert "Partition assignments:" in ranks[0].stdout + ranks[0].stderr
    before, after = (torch.load(folder / "model.pt", weights_only=True) for folder in folders)
    assert list(before) == list(after)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-3, atol=1e-4)
