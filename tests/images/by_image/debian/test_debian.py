"""What only an image on Debian has to be."""

import docker
import pytest
from testinfra.host import Host

from shoal.image import base
from shoal.image.versions import Row, Versions

pytestmark = pytest.mark.image


def test_a_bootstrapped_base_is_of_today_s_recipe(
    client: docker.DockerClient, image: str, row: Row, versions: Versions
) -> None:
    labels = client.images.get(image).labels
    if base.ORIGIN_LABEL not in labels:
        pytest.skip("its base was pulled")
    assert labels[base.ORIGIN_LABEL] == f"mmdebstrap-{versions.bases[row.base].suite}"
    assert labels[base.RECIPE_LABEL] == base.recipe(versions.bases[row.base])


def test_licences_of_packages_are_kept(host: Host) -> None:
    """Documentation is left out, copyrights are not."""
    packages = host.check_output("dpkg-query -W -f '${Package}\\n'").split()
    there = set(host.check_output("ls /usr/share/doc").split())
    assert len(packages) > 80
    assert [name for name in packages if name not in there] == []
    assert host.check_output("find /usr/share/doc /usr/share/man -type f ! -name copyright") == ""


def test_every_package_is_set_up(host: Host) -> None:
    assert host.check_output("dpkg --audit") == ""
    states = host.check_output("dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n'").splitlines()
    assert [line for line in states if not line.startswith("ii")] == []


def test_files_of_packages_are_as_they_came(host: Host) -> None:
    """But for the documentation that was left out and what the template replaces on purpose."""
    changed = host.run("dpkg --verify").stdout.splitlines()
    assert [line for line in changed if "/usr/share/" not in line and "/etc/" not in line] == []
