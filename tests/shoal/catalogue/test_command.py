"""`shoal catalogue`: what it reads, writes and refuses, without a browser."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from catalogue_samples import FOREIGN, MANIFESTS, NEW, OLD, ROW, UNBUILT, Shoal, bill, manifest

from shoal.image.catalogue.baselines import Baseline, baseline
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("torch", "device", "flavour", "expected"),
    [
        ("1.11.0", "gpu", "sagemaker", Baseline(16000, "1.11.0")),
        ("1.12.1", "gpu", "sagemaker", Baseline(14000, "1.12.1")),
        ("2.5.1", "gpu", "sagemaker", Baseline(21500, "2.5.1")),
        ("2.5.1", "gpu", "ec2", None),  # smaller than SageMaker's, whose number versions.yaml has
        ("2.4.1", "gpu", "sagemaker", Baseline(21500, "2.4.0")),  # the same minor version
        ("2.15.0", "gpu", "sagemaker", Baseline(28000, "2.10.0")),  # newer than all of theirs
        ("1.10.0", "gpu", "sagemaker", None),
        ("1.11.0", "cpu", "sagemaker", None),
        ("1.12.0", "cpu", "sagemaker", Baseline(5000, "1.12.1")),
        ("2.13.0", "cpu", "sagemaker", Baseline(7200, "2.10.0")),
        ("2.13.0", "tpu", "sagemaker", None),
    ],
)
def test_published_sizes(torch: str, device: str, flavour: str, expected: Baseline | None) -> None:
    assert baseline(load(ROOT / "versions.yaml"), torch, device, flavour) == expected


def test_json_has_all_rows_and_images_newest_first(shoal: Shoal, clone: Path) -> None:
    done = shoal("catalogue", "--json", *(clone / ".shoal" / f"{name}.json" for name in ("old", "gpu", ROW)))
    assert done.returncode == 0, done.stderr
    first, second, third = json.loads(done.stdout)
    assert [image["reference"] for image in first["images"]] == [NEW, OLD]
    assert (second["id"], second["images"]) == (UNBUILT, [])
    assert third["declared"] is None
    assert [image["reference"] for image in third["images"]] == [FOREIGN]


def test_licences_are_the_package_s_own_words_then_the_bill_s(shoal: Shoal, clone: Path) -> None:
    done = shoal("catalogue", "--json", clone / ".shoal" / f"{ROW}.json")
    packages = json.loads(done.stdout)[0]["images"][0]["packages"]
    licences = {one["name"]: one["licence"] for one in packages}
    assert licences["numpy"] == "BSD-3-Clause"
    assert licences["Evil_Package"] == MANIFESTS[ROW]["measured"]["licenses"]["Evil_Package"]
    assert licences["libc6"] == "LGPL-2.1-or-later"
    assert licences["openssh-server"] == ""


def test_without_arguments_the_clone_s_own_manifests(shoal: Shoal, clone: Path) -> None:
    done = shoal("catalogue", "--registry", "registry.example/team/")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{clone / '.shoal' / 'catalogue.html'}\n"
    text = (clone / ".shoal" / "catalogue.html").read_text()
    assert f'<span class="registry">registry.example/team</span>/{NEW}' in text
    assert FOREIGN not in text


def without(key: str) -> dict[str, Any]:
    broken = copy.deepcopy(MANIFESTS[ROW])
    del broken["measured"][key]
    return broken


WHOLE = json.dumps(MANIFESTS[ROW])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        ("", "Expecting value"),
        (WHOLE[: len(WHOLE) // 2], "not a manifest of an image: "),
        (b"{\xff}", "can't decode"),
        ("[" * 100_000, "recursion"),
        ("[]", "top level: Input should be a valid dictionary"),
        ('{"bomFormat": "CycloneDX", "components": []}', "names: Field required"),
        (json.dumps(without("packages")), "measured.packages: Field required"),
        (json.dumps(manifest("no tag", 1)), "names.immutable: String should match pattern"),
        (json.dumps(manifest(NEW, -1)), "size_bytes: Input should be greater than or equal to 0"),
        (json.dumps(manifest(NEW, 1, torch="two")), "measured.torch: Value error, Invalid version: 'two'"),
        (
            json.dumps(manifest(NEW, 1, packages={"numpy": 2})),
            "measured.packages.numpy: Input should be a",
        ),
    ],
)
def test_what_is_no_manifest_is_named_in_one_line_and_nothing_is_written(
    shoal: Shoal, tmp_path: Path, content: str | bytes | None, said: str
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    page = tmp_path / "page.html"
    page.write_text("the page of yesterday")
    done = shoal("catalogue", "--output", page, path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"shoal: {path}: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert page.read_text() == "the page of yesterday"
    assert {one.name for one in tmp_path.iterdir()} <= {"a.json", "page.html"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not a CycloneDX bill of materials"),
        ("{}", "metadata: Field required"),
        (
            json.dumps(bill(OLD, "2026-11-20T10:00:00+00:00")),
            "a bill of 2.13.0-cpu-py311-debian12-sagemaker-aaaaaaaa",
        ),
    ],
)
def test_a_bill_of_something_else_is_named(shoal: Shoal, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.json").write_text(WHOLE)
    (tmp_path / "a.cdx.json").write_text(content)
    done = shoal("catalogue", "--output", tmp_path / "page.html", tmp_path / "a.json")
    assert done.returncode == 2
    assert done.stderr.startswith(f"shoal: {tmp_path / 'a.cdx.json'}: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_page_that_cannot_be_written_is_named(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file" / "page.html", tmp_path):
        done = shoal("catalogue", "--output", output)
        assert done.returncode == 2
        assert done.stderr.startswith(f"shoal: {output}: cannot be written: ")
        assert len(done.stderr.splitlines()) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
