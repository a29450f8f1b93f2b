"""What `benchmarks/images.py` measures: figures and claims from tables, changes in a clone of a small repository, and
one real build of nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.build import UnavailableError
from harness.image_builds import REPOSITORY, changed_files, clone

from images import claims, one_build, size, table
from shoal import engine
from shoal.image.catalogue.manifests import Manifest
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = load(ROOT / "versions.yaml")
ENTRYPOINT, CORE = "entrypoint/src/shoal_entrypoint/main.py", "smddp_core/src/collective/exchange.cpp"
HEADER = "smddp_core/include/smddp/errors.hpp"


def manifest(torch: str, device: str, size_bytes: int) -> Manifest:
    measured = {"torch": torch, "device": device, "packages": {}}
    names = {"immutable": f"pytorch-training:{torch}-{device}-py311-debian12-sagemaker-0123456789ab"}
    return Manifest.model_validate({"names": names, "size_bytes": size_bytes, "measured": measured})


def seconds(part: str, median: float) -> dict[str, Any]:
    return {"part": part, "row": "2.13-cpu", "unit": "s", "median": median, "max": median, "rounds": 1}


def test_sizes_stand_beside_the_vendor_s() -> None:
    figure = size(VERSIONS, "2.13-cpu", manifest("2.13.0", "cpu", 1_157_154_360))
    assert (figure["median"], figure["vendor"], figure["vendor_over_ours"]) == (
        1157.2,
        {"mb": 7200, "of": "2.10.0"},
        6.22,
    )
    unpublished = size(VERSIONS, "1.11-cpu", manifest("1.11.0", "cpu", 1_000_000_000))
    assert (unpublished["vendor"], unpublished["vendor_over_ours"]) == (None, None)


def test_each_promise_has_its_limit() -> None:
    figures = [
        size(VERSIONS, "2.13-cpu", manifest("2.13.0", "cpu", 1_250_000_000)),
        size(VERSIONS, "2.13-cpu", manifest("2.13.0", "cpu", 1_250_100_000)),
        size(VERSIONS, "1.12-cpu", manifest("1.12.0", "cpu", 9_000_000_000)),  # nothing was promised of it
        size(VERSIONS, "2.13-gpu", manifest("2.13.0", "gpu", 5_600_100_000)),
        *(seconds(part, limit) for part, limit in (("entrypoint", 10), ("smddp_core", 90), ("none", 3), ("cold", 999))),
        *(seconds(part, limit + 0.01) for part, limit in (("entrypoint", 10), ("smddp_core", 90), ("none", 3))),
    ]
    found = claims(figures)
    assert [(claim["what"].partition(": ")[0], claim["target"], claim["holds"]) for claim in found] == [
        ("2.13-cpu", 1250, True),
        ("2.13-cpu", 1250, False),
        ("2.13-gpu", 5600, False),
        ("2.13-cpu", 10, True),
        ("2.13-cpu", 10, False),
        ("2.13-cpu", 90, True),
        ("2.13-cpu", 90, False),
        ("2.13-cpu", 3, True),
        ("2.13-cpu", 3, False),
    ]
    text = table(figures, found)
    assert "DOES NOT HOLD: 2.13-gpu: size, uncompressed: 5600.1 MB (target <= 5600)" in text
    assert "holds: 2.13-cpu: build after no change: 3 s (target <= 3)" in text


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with the two files that are changed, and a wheel that was fetched."""
    root = tmp_path / "repository"
    for name in (ENTRYPOINT, CORE, HEADER, "wheelhouse/README.md", "wheelhouse/2.13-cpu/a.whl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("as it was\n")
    (root / ".gitignore").write_text("*.whl\n")
    git = ["git", "-C", str(root), "-c", "user.name=test", "-c", "user.email=test@example.com"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=all"]):
        subprocess.run([*git, *arguments], check=True)
    return root


def test_changes_are_made_in_the_clone_and_are_new_each_time(repository: Path) -> None:
    with clone(repository) as place:
        assert (place.root / "wheelhouse/2.13-cpu/a.whl").read_text() == "as it was\n"
        for part, name in (("entrypoint", ENTRYPOINT), ("smddp_core", CORE), ("smddp_core_all", HEADER)):
            place.change(part)
            once = (place.root / name).read_text()
            place.change(part)
            twice = (place.root / name).read_text().removeprefix(once)
            assert once.removeprefix("as it was\n") not in ("", twice)
        assert changed_files(place.root) == 3
    assert not place.root.exists()
    assert changed_files(repository) == 0
    assert {(repository / name).read_text() for name in (ENTRYPOINT, CORE, HEADER)} == {"as it was\n"}


def test_the_files_that_are_changed_are_there() -> None:
    for name in (ENTRYPOINT, CORE, HEADER):
        assert (ROOT / name).is_file(), name


def test_what_is_no_repository_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"git clone of .*"), clone(tmp_path):
        pass


def test_a_build_that_fails_is_no_measurement(repository: Path) -> None:
    with (
        clone(repository) as place,
        pytest.raises(UnavailableError, match=r"shoal build 2.13-cpu: shoal: no vers"),
    ):
        one_build(place, "2.13-cpu", "none")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--part", "size,nothing"],
            "--part: 'nothing' is none of size, none, warm, entrypoint, smddp_core, ",
        ),
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--rows", "2.13-gpuu"], "no row '2.13-gpuu'"),
    ],
)
def test_a_bad_argument_is_refused_in_one_line(arguments: list[str], said: str) -> None:
    argv = [sys.executable, str(ROOT / "benchmarks" / "images.py"), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert said in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.image
def test_a_build_of_nothing_moves_no_tag_of_the_user() -> None:
    client = engine.connect()
    with clone(ROOT) as place:
        _, made = place.build("2.13-cpu")
        assert made["names"]["full"] == f"{REPOSITORY}:2.13.0-cpu-py311-debian12-sagemaker"
        assert {tag.partition(":")[0] for tag in (made["names"]["full"], made["names"]["immutable"])} == {REPOSITORY}
        assert len(client.images.list(name=REPOSITORY)) == 1
        _, again = place.build("2.13-cpu")
        assert again["names"] == made["names"]
        assert not again["fresh"]
    assert client.images.list(name=REPOSITORY) == []
