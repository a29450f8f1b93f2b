"""The host's package settings: what is read, and what of it a build is given."""

import configparser
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from shoal.image import host_settings
from shoal.image.host_settings import AptSettings


def pip_conf(monkeypatch: pytest.MonkeyPatch, **environ: str) -> configparser.RawConfigParser:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")  # pip's own way to ignore the machine's files
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    parser = configparser.RawConfigParser()
    parser.read_string(host_settings.pip_settings())
    return parser


def test_pip_indexes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = pip_conf(
        monkeypatch,
        PIP_INDEX_URL="https://user:secret@packages.example/simple",
        PIP_EXTRA_INDEX_URL="https://a.example/simple https://b.example/simple",
        PIP_TRUSTED_HOST="packages.example",
    )
    section = parser["global"]
    assert section["index-url"] == "https://user:secret@packages.example/simple"
    assert section["extra-index-url"].split() == ["https://a.example/simple", "https://b.example/simple"]
    assert section["trusted-host"] == "packages.example"


def test_local_folders_are_no_business_of_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = pip_conf(
        monkeypatch, PIP_FIND_LINKS="/srv/wheels", PIP_EXTRA_INDEX_URL="file:///srv/simple https://a.example/simple"
    )
    assert dict(parser["global"]) == {"extra-index-url": "https://a.example/simple"}


def test_proxies_survive_a_shell() -> None:
    text = host_settings.proxy_settings(
        {"HTTPS_PROXY": "http://u:p'w$x@proxy.example:3128", "no_proxy": "localhost,.lan"}
    )
    script = f"set -a\n{text}\nenv -0"
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={}).stdout
    found = dict(entry.split("=", 1) for entry in output.split("\0") if "proxy" in entry.lower())
    assert found["https_proxy"] == found["HTTPS_PROXY"] == "http://u:p'w$x@proxy.example:3128"
    assert found["no_proxy"] == "localhost,.lan"
    assert len(shlex.split(text)) == 4


def test_a_named_ca_bundle_comes_before_the_system_s(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    assert host_settings.ca_bundle({"SSL_CERT_FILE": str(bundle)}) == bundle
    assert host_settings.ca_bundle({"SSL_CERT_FILE": str(tmp_path / "gone.pem")}) in (None, host_settings.SYSTEM_CA)


def test_apt_sources_name_the_mirror_and_every_pocket() -> None:
    apt = AptSettings("http://mirror.example/debian", "http://mirror.example/security", ('Acquire::Retries "3";',))
    conf, sources = host_settings.apt_configuration(apt, "bookworm", has_ca=True)
    assert sources.splitlines() == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
        "deb http://mirror.example/security bookworm-security main",
    ]
    assert 'Acquire::Retries "3";' in conf
    assert 'Dir::Etc::SourceList "/run/secrets/sources.list";' in conf
    assert 'Acquire::https::CAInfo "/run/secrets/ca.pem";' in conf


def test_without_a_mirror_the_image_s_own_sources_stay() -> None:
    conf, sources = host_settings.apt_configuration(AptSettings(None, None, ()), "bookworm", has_ca=False)
    assert (conf, sources) == ("", "")


def test_secret_files_are_private_and_go_away() -> None:
    with host_settings.secrets("bookworm", environ={"http_proxy": "http://proxy.example"}) as arguments:
        values = dict(
            part.split("=", 1) for argument in arguments[1::2] for part in argument.split(",") if "src=" in part
        )
        path = Path(values["src"])
        assert path.is_file()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()
