"""Who may do what in any image: accounts, modes of files, keys."""

import pytest
from containers import Run
from testinfra.host import Host

from shoal.image.versions import Row

pytestmark = pytest.mark.image

# What Debian and Ubuntu set up themselves; whatever else runs as another user got there by accident.
PRIVILEGED = {
    *("/usr/bin/chage", "/usr/bin/chfn", "/usr/bin/chsh", "/usr/bin/expiry", "/usr/bin/gpasswd", "/usr/bin/mount"),
    *("/usr/bin/newgrp", "/usr/bin/passwd", "/usr/bin/ssh-agent", "/usr/bin/su", "/usr/bin/umount", "/usr/bin/wall"),
    *("/usr/lib/openssh/ssh-keysign", "/usr/sbin/pam_extrausers_chkpwd", "/usr/sbin/unix_chkpwd"),
}
# Whether file capabilities are set: their tool is in no image, Python reads them itself.
CAPABILITIES = """
import os
for folder, _, names in os.walk("/"):
    if folder.startswith(("/proc", "/sys", "/dev")):
        continue
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.islink(path) and "security.capability" in os.listxattr(path):
            print(path)
"""


def test_the_system_is_the_row_s(host: Host, row: Row) -> None:
    lines = host.file("/etc/os-release").content_string.replace('"', "").splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line)
    assert row.base == release["ID"] + release["VERSION_ID"]


def test_no_program_takes_another_user_s_rights(host: Host) -> None:
    found = host.check_output("find / -xdev -type f '(' -perm -4000 -o -perm -2000 ')'").split()
    assert set(found) - PRIVILEGED == set()


def test_no_program_has_capabilities(run: Run) -> None:
    assert run(["python", "-c", CAPABILITIES]).out == ""


def test_nothing_can_be_written_by_everybody(host: Host) -> None:
    """But for folders like /tmp, where the sticky bit keeps each user's files their own."""
    found = host.check_output(
        "find / -xdev -perm -0002 ! -type l ! -type c '(' ! -type d -o ! -perm -1000 ')' ! -path '/proc/*'"
    )
    assert found == ""


def test_no_account_has_a_password(host: Host) -> None:
    lines = host.file("/etc/shadow").content_string.splitlines()
    assert [line for line in lines if line.split(":")[1][:1] not in ("*", "!")] == []


def test_only_root_is_root(host: Host) -> None:
    lines = host.file("/etc/passwd").content_string.splitlines()
    assert [line.split(":")[0] for line in lines if line.split(":")[2] == "0"] == ["root"]


def test_every_file_belongs_to_an_account_that_there_is(host: Host) -> None:
    assert host.check_output("find / -xdev '(' -nouser -o -nogroup ')' ! -path '/proc/*'") == ""


def test_root_has_no_keys(host: Host) -> None:
    """Keys belong to a job: one in an image would be everybody's."""
    assert host.run("find /root/.ssh -type f").stdout == ""
    assert host.run("ls /etc/ssh/ssh_host_*").rc != 0
