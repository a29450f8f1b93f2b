"""What changed between two images, and the bill of materials, from manifests made up here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.image.changes import changes
from shoal.image.sbom import bill

ROOT = Path(__file__).resolve().parents[3]


def manifest(tag: str, size: int, **measured: Any) -> dict[str, Any]:
    facts = {"torch": "2.13.0", "packages": {"numpy": "2.4.6"}, "debian": {"libc6": "2.36-9"}, "licenses": {}}
    return {"names": {"immutable": tag}, "size_bytes": size, "measured": {**facts, **measured}}


OLD = manifest("pytorch-training:a", 1_247_561_498, packages={"numpy": "2.4.6", "six": "1.17.0"})
NEW = manifest(
    "pytorch-training:b",
    1_157_154_360,
    torch="2.13.1",
    packages={"numpy": "2.4.7", "boto3": "1.44.5"},
    debian={"libc6": "2.36-10"},
)


def test_every_difference_is_named_once() -> None:
    found = changes(OLD, NEW)
    assert [(one.kind, one.name, one.before, one.after) for one in found.changes] == [
        ("image", "torch", "2.13.0", "2.13.1"),
        ("packages", "boto3", None, "1.44.5"),
        ("packages", "numpy", "2.4.6", "2.4.7"),
        ("packages", "six", "1.17.0", None),
        ("debian", "libc6", "2.36-9", "2.36-10"),
    ]
    note = found.note()
    assert "Compared with pytorch-training:a: 1157 MB, -90.4 MB." in note
    assert "| packages | six | 1.17.0 | - |" in note


def test_nothing_differs() -> None:
    assert "No version differs." in changes(OLD, OLD).note()


def test_what_an_older_probe_did_not_ask_is_no_difference() -> None:
    older = {**OLD, "measured": {key: value for key, value in OLD["measured"].items() if key != "debian"}}
    assert changes(older, OLD).changes == []


def test_the_bill_names_every_package_with_its_licence_and_is_always_the_same() -> None:
    measured = {
        **NEW["measured"],
        "licenses": {"numpy": "BSD-3-Clause AND MIT", "boto3": "some words of their own"},
        "debian_licenses": {"libc6": "GPL-2+; LGPL-2.1+"},
    }
    text = bill("pytorch-training:b", "2026-11-21T01:02:03.123456789Z", measured)
    assert text == bill("pytorch-training:b", "2026-11-21T01:02:03.123456789Z", measured)
    read = json.loads(text)
    assert read["bomFormat"] == "CycloneDX"
    assert read["metadata"]["component"]["type"] == "container"
    components = {one["purl"]: one for one in read["components"]}
    assert set(components) == {"pkg:pypi/numpy@2.4.7", "pkg:pypi/boto3@1.44.5", "pkg:deb/debian/libc6@2.36-10"}
    assert components["pkg:pypi/numpy@2.4.7"]["licenses"] == [{"expression": "BSD-3-Clause AND MIT"}]
    assert components["pkg:pypi/boto3@1.44.5"]["licenses"] == [{"license": {"name": "some words of their own"}}]
    assert components["pkg:deb/debian/libc6@2.36-10"]["licenses"] == [{"license": {"name": "GPL-2+; LGPL-2.1+"}}]


def shoal(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "shoal", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)


def test_diff_of_two_files(tmp_path: Path) -> None:
    for name, content in (("old.json", OLD), ("new.json", NEW)):
        (tmp_path / name).write_text(json.dumps(content))
    done = shoal("diff", tmp_path / "old.json", tmp_path / "new.json")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("packages")] == [
        ["packages", "boto3", "-", "1.44.5"],
        ["packages", "numpy", "2.4.6", "2.4.7"],
        ["packages", "six", "1.17.0", "-"],
    ]
    data = shoal("diff", tmp_path / "old.json", tmp_path / "new.json", "--json")
    assert len(json.loads(data.stdout)["changes"]) == 5


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), ("{", "cannot be read"), ("[]", "not a manifest of an image"), ("{}", "not a manifest")],
)
def test_diff_of_what_is_no_manifest(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    done = shoal("diff", path, path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
