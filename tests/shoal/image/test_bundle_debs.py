"""The part of Debian's archive in a bundle: where what apt has downloaded belongs."""

from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.image.bundle import debs

MAIN = "http://mirror.example/debian/"
SECURITY = "http://mirror.example/debian-security/"
LISTS = "mirror.example_debian"
TARGETS = f"""\
{MAIN}|bookworm|main|main/binary-amd64/Packages|/lists/{LISTS}_dists_bookworm_main_binary-amd64_Packages.xz
{MAIN}|bookworm|contrib|contrib/binary-amd64/Packages|/lists/{LISTS}_dists_bookworm_contrib_binary-amd64_Packages.xz
{SECURITY}|stable/updates|main|main/binary-amd64/Packages|/lists/{LISTS}-security_dists_stable_updates_main_binary-amd64_Packages.xz
"""
URIS = f"""\
'{MAIN}pool/main/g/gcc/g%2b%2b-12_12.2_amd64.deb' g++-12_12.2_amd64.deb 1234 SHA256:00
'{SECURITY}pool/updates/main/o/openssl/libssl3_3.0~deb12u1_amd64.deb' libssl3_3.0~deb12u1_amd64.deb 1 SHA256:00
"""


@pytest.fixture
def downloaded(tmp_path: Path) -> Path:
    folder = tmp_path / "downloaded"
    for name in ("lists", "archives"):
        (folder / name).mkdir(parents=True)
    (folder / "targets").write_text(TARGETS)
    (folder / "uris").write_text(URIS)
    for line in TARGETS.splitlines():
        name = line.rsplit("/", 1)[1]
        (folder / "lists" / name).write_text(name)
        (folder / "lists" / (name.rsplit("_", 3)[0] + "_InRelease")).write_text("signed")
    for line in URIS.splitlines():
        (folder / "archives" / line.split()[1]).write_text("deb")
    return folder


def test_everything_is_where_apt_looks_for_it(downloaded: Path, tmp_path: Path) -> None:
    into = tmp_path / "debs"
    debs.lay_out(downloaded, into)
    assert {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()} == {
        "sources.list",
        "0/dists/bookworm/InRelease",
        "0/dists/bookworm/main/binary-amd64/Packages.xz",
        "0/dists/bookworm/contrib/binary-amd64/Packages.xz",
        "0/pool/main/g/gcc/g++-12_12.2_amd64.deb",
        "1/dists/stable/updates/InRelease",
        "1/dists/stable/updates/main/binary-amd64/Packages.xz",
        "1/pool/updates/main/o/openssl/libssl3_3.0~deb12u1_amd64.deb",
    }


def test_the_mirror_is_not_named(downloaded: Path, tmp_path: Path) -> None:
    debs.lay_out(downloaded, tmp_path / "debs")
    assert (tmp_path / "debs" / "sources.list").read_text().splitlines() == [
        "deb file:/build/debs/0 bookworm main",
        "deb file:/build/debs/0 bookworm contrib",
        "deb file:/build/debs/1 stable/updates main",
    ]


def test_without_a_signed_index_there_is_no_bundle(downloaded: Path, tmp_path: Path) -> None:
    (downloaded / "lists" / f"{LISTS}_dists_bookworm_InRelease").unlink()
    with pytest.raises(ShoalError, match=r"apt: bookworm: no signed index \(InRelease\) was downloaded"):
        debs.lay_out(downloaded, tmp_path / "debs")
