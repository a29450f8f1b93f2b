"""What a build leaves behind and an image must not have."""

import pytest
from testinfra.host import Host

pytestmark = pytest.mark.image


@pytest.mark.parametrize("program", ["gcc", "g++", "cc", "c++", "make", "cmake", "ninja", "ld", "nvcc"])
def test_no_compiler(host: Host, program: str) -> None:
    assert host.run("command -v %s", program).rc != 0


@pytest.mark.parametrize(
    "folder", ["/root/.cache", "/var/cache/apt/archives", "/var/lib/apt/lists", "/tmp", "/var/tmp", "/build", "/wheels"]
)
def test_no_caches(host: Host, folder: str) -> None:
    assert host.run("find %s -type f ! -name lock ! -name 'lock*'", folder).stdout == ""


def test_no_logs(host: Host) -> None:
    assert host.check_output("find /var/log -type f -size +0 ! -name faillog ! -name lastlog") == ""


def test_the_build_host_s_apt_options_are_gone(host: Host) -> None:
    assert host.run("grep -rE '^Acquire::(http|https|Check)' /etc/apt").stdout == ""


def test_apt_asks_the_public_archive(host: Host) -> None:
    said = host.run("grep -rhoE 'https?://[^/ ]+' /etc/apt/sources.list /etc/apt/sources.list.d").stdout.split()
    assert [url for url in said if not url.endswith((".debian.org", ".ubuntu.com"))] == []
