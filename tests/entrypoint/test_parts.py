"""The small parts: code on disk, failure texts, ssh files, devices, interfaces."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from shoal_entrypoint import code, devices, failure, network, remote, ssh
from shoal_entrypoint.configuration import Job, Resource
from shoal_entrypoint.outcome import SUCCESS, JobError, Outcome


def job(program: str = "train.py", submit_directory: str | None = None) -> Job:
    resource = Resource(
        raw={},
        current_host="algo-1",
        hosts=("algo-1",),
        current_instance_type="local",
        current_group="homogeneousCluster",
        network_interface="eth0",
        groups=(),
    )
    return Job(
        resource=resource,
        inputs={},
        user_hyperparameters={},
        framework_parameters={},
        program=program,
        submit_directory=submit_directory,
        s3_output=None,
        log_level=20,
        job_name=None,
        named="",
        region="",
        framework_module=None,
        distribution_groups=(),
        distribution_hosts=(),
    )


@pytest.mark.parametrize(
    ("program", "files", "kind", "argv", "mpi_argv"),
    [
        ("train.py", [], "program", ["PY", "--", "train.py", "-n", "3"], ["PY", "-m", "mpi4py", "train.py", "-n", "3"]),
        ("src/t.py", [], "program", ["PY", "--", "src/t.py", "-n", "3"], ["PY", "-m", "mpi4py", "src/t.py", "-n", "3"]),
        (
            "train.py",
            ["setup.py"],
            "package",
            ["PY", "-m", "train", "-n", "3"],
            ["PY", "-m", "mpi4py", "-m", "train", "-n", "3"],
        ),
        (
            "-m a.b",
            ["setup.py"],
            "module",
            ["PY", "-m", "a.b", "-n", "3"],
            ["PY", "-m", "mpi4py", "-m", "a.b", "-n", "3"],
        ),
        ("a.sh", ["setup.py"], "command", ["/bin/sh", "-c", "./a.sh -n 3"], ["/bin/sh", "-c", "./a.sh -n 3"]),
        ("tool", [], "command", ["/bin/sh", "-c", "./tool -n 3"], ["/bin/sh", "-c", "./tool -n 3"]),
    ],
)
def test_entry_points(
    tmp_path: Path, program: str, files: list[str], kind: str, argv: list[str], mpi_argv: list[str]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    entry = code.find_entry(job(program=program), tmp_path)
    assert entry.kind == kind
    assert [word.replace(sys.executable, "PY") for word in entry.argv(["-n", "3"])] == argv
    assert [word.replace(sys.executable, "PY") for word in entry.mpi_argv(["-n", "3"])] == mpi_argv


def test_a_shell_gets_arguments_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text('#!/bin/sh\nfor word in "$@"; do printf "%s|" "$word"; done\n')
    entry = code.find_entry(job(program="a.sh"), tmp_path)
    code.check(entry, tmp_path)
    words = ["$HOME", "a b", "'q'", "`id`", "x\ny", ""]
    assert subprocess.check_output(entry.argv(words), cwd=tmp_path, text=True) == "".join(word + "|" for word in words)


def archive(path: Path, members: Mapping[str, str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))


def test_code_from_a_directory_an_archive_or_already_there(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "code"
    (source / "lib").mkdir(parents=True)
    target.mkdir()
    (source / "lib" / "x.py").write_text("1")
    code.fetch(job(submit_directory=str(source)), target)
    assert (target / "lib" / "x.py").read_text() == "1"
    archive(tmp_path / "s.tar.gz", {"train.py": "2"})
    code.fetch(job(submit_directory=str(tmp_path / "s.tar.gz")), target)
    assert not (target / "train.py").exists()  # the folder was not empty
    other = tmp_path / "other"
    other.mkdir()
    code.fetch(job(submit_directory=str(tmp_path / "s.tar.gz")), other)
    assert (other / "train.py").read_text() == "2"


def test_an_archive_cannot_write_outside(tmp_path: Path) -> None:
    target = tmp_path / "code"
    target.mkdir()
    archive(tmp_path / "s.tar.gz", {"../escape.txt": "x", "/abs.txt": "y", "a/../b.txt": "z", "..\\c.txt": "w"})
    code.fetch(job(submit_directory=str(tmp_path / "s.tar.gz")), target)
    found = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.txt"))
    assert found == ["code/a/b.txt", "code/abs.txt", "code/c.txt", "code/escape.txt"]


@pytest.mark.parametrize(
    ("kind", "link", "kept"),
    [
        (tarfile.SYMTYPE, "train.py", True),
        (tarfile.SYMTYPE, "not-yet-there", True),
        (tarfile.SYMTYPE, "../outside", False),
        (tarfile.SYMTYPE, "/etc/passwd", False),
        (tarfile.LNKTYPE, "train.py", True),
        (tarfile.LNKTYPE, "../outside", False),
        (tarfile.FIFOTYPE, "", False),
        (tarfile.CHRTYPE, "", False),
    ],
)
def test_links_that_lead_outside_and_special_files_are_left_out(
    tmp_path: Path, kind: bytes, link: str, kept: bool
) -> None:
    target = tmp_path / "code"
    target.mkdir()
    archive(tmp_path / "s.tar.gz", {"train.py": "x"})
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for name, type_, linkname in (("train.py", tarfile.REGTYPE, ""), ("m", kind, link), ("z", tarfile.REGTYPE, "")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = type_, linkname
            tar.addfile(info)
    code.fetch(job(submit_directory=str(tmp_path / "s.tar")), target)
    assert sorted(file.name for file in target.iterdir()) == ["m", "train.py", "z"] if kept else ["train.py", "z"]


@pytest.mark.parametrize("damage", ["cut", "junk", "link to nothing"])
def test_a_damaged_archive_is_named(tmp_path: Path, damage: str) -> None:
    target, packed = tmp_path / "code", tmp_path / "s.tar.gz"
    target.mkdir()
    archive(packed, {"train.py": "x" * 9999})
    if damage == "cut":
        packed.write_bytes(packed.read_bytes()[:-20])
    elif damage == "junk":
        packed.write_bytes(b"\x1f\x8b junk")
    else:
        with tarfile.open(packed, "w:gz") as tar:
            info = tarfile.TarInfo("m")
            info.type, info.linkname = tarfile.LNKTYPE, "nothing"
            tar.addfile(info)
    with pytest.raises(JobError, match=r"s\.tar\.gz: cannot be unpacked"):
        code.fetch(job(submit_directory=str(packed)), target)


def test_a_command_outside_of_the_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "tool").write_text("")
    (tmp_path / "code" / "x.sh").symlink_to(tmp_path / "tool")
    with pytest.raises(JobError, match=r"x\.sh: is a link to .*tool, outside of"):
        code.check(code.Entry("command", "x.sh"), tmp_path / "code")
    assert (tmp_path / "tool").stat().st_mode & 0o111 == 0


def test_a_directory_with_a_main_module_can_be_started(tmp_path: Path) -> None:
    (tmp_path / "d.py").mkdir()
    with pytest.raises(JobError, match="no such file"):
        code.check(code.Entry("program", "d.py"), tmp_path)
    (tmp_path / "d.py" / "__main__.py").write_text("")
    code.check(code.Entry("program", "d.py"), tmp_path)


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../b.py", "a b.py", "$(id).sh", "-c.py", "./a.py", ""])
def test_names_that_are_no_entry_points(tmp_path: Path, name: str) -> None:
    with pytest.raises(JobError, match="is not a file name below"):
        code.find_entry(job(program=name), tmp_path)


def test_failure_text_has_the_form_that_tools_parse() -> None:
    error = failure.command_failure("ExecuteUserScriptError", 3, "boom", ["python", "--", "t.py"])
    assert error.text == 'ExecuteUserScriptError:\nExitCode 3\nErrorMessage "boom"\nCommand "python -- t.py"'
    assert error.exit_code == 3
    assert len(failure.command_failure("E", 1, "x" * 100_000, []).text) < 20_000


@pytest.mark.parametrize(("returncode", "exit_code"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_signals_become_exit_codes(returncode: int, exit_code: int) -> None:
    assert failure.to_exit_code(returncode) == exit_code


def test_a_failure_never_has_exit_code_0() -> None:
    assert JobError("x", 0).exit_code == 1
    assert JobError("x", 256).exit_code == 1
    assert JobError("x", -3).exit_code == 1


def test_recording(tmp_path: Path) -> None:
    paths = (tmp_path / "o" / "failure", tmp_path / "o" / "success")
    assert failure.record(Outcome(7, "why"), *paths) == 7
    assert paths[0].read_text() == "why"
    assert failure.record(Outcome(7, "other"), *paths) == 7
    assert paths[0].read_text() == "why"
    assert not paths[1].exists()
    assert failure.record(SUCCESS, *paths) == 0
    assert paths[1].read_text() == ""


def test_an_environment_survives_the_way_to_another_host(tmp_path: Path) -> None:
    values = {"A": "two\nlines", "Q": 'it\'s "quoted" $HOME', "E": "", "U": "é\udcff"}
    remote.save(tmp_path / "env", values)
    assert (tmp_path / "env").stat().st_mode & 0o777 == 0o600
    command = [sys.executable, "-I", "-S", remote.__file__, str(tmp_path / "env")]
    script = f"exec {sys.executable} -c 'import os; print(ascii(dict(os.environ)))'"
    done = subprocess.run(
        command, env={"SSH_ORIGINAL_COMMAND": script, "LEAK": "1"}, capture_output=True, text=True, check=True
    )
    seen: dict[str, str] = eval(done.stdout)
    assert {name: seen.get(name) for name in values} == values
    assert "LEAK" not in seen


def test_remote_refuses_a_login_shell(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", remote.__file__, "x"], env={}, capture_output=True, check=False)
    assert done.returncode != 0


@pytest.mark.parametrize(("port", "line"), [(22, "algo-2 ssh-ed25519 A\n"), (2222, "[algo-2]:2222 ssh-ed25519 A\n")])
def test_known_hosts(port: int, line: str) -> None:
    assert ssh.known_hosts({"algo-2": ssh.Login("ssh-ed25519 A", port, "root")}) == line


@pytest.mark.parametrize("key", [None, "", "ssh-rsa AAAA", "ssh-ed25519 " + "A" * 68 + "\nssh-ed25519 x", "restrict x"])
def test_a_key_from_another_host_is_checked(key: str | None) -> None:
    with pytest.raises(JobError, match="algo-2: sent no usable ssh_key"):
        ssh.public_key({"ssh_key": key}, "ssh_key", "algo-2")


@pytest.mark.parametrize(
    ("host", "changes"),
    [
        ("algo-2", {"ssh_port": "22\n  ProxyCommand x"}),
        ("algo-2", {"ssh_port": 0}),
        ("algo-2", {"ssh_port": True}),
        ("algo-2", {"ssh_user": "root\n  ProxyCommand x"}),
        ("algo-2", {"ssh_user": "-x"}),
        ("algo-2", {"ssh_user": None}),
        ("algo-2\n  ProxyCommand x", {}),
        ("-oProxyCommand=x", {}),
        ("*", {}),
    ],
)
def test_a_login_from_another_host_is_checked(host: str, changes: dict[str, object]) -> None:
    card = {"ssh_host_key": "ssh-ed25519 " + "A" * 68, "ssh_port": 22, "ssh_user": "root"}
    assert ssh.Login.from_card(card, "algo-2").port == 22
    with pytest.raises(JobError, match=r"algo-2: sent no usable|is no host name that ssh can take"):
        ssh.Login.from_card({**card, **changes}, host)


def test_addresses_that_are_none_do_not_reach_authorized_keys() -> None:
    assert ssh.authorized_keys("ssh-ed25519 A", ["10.0.0.2", 'x",command="y', 7, "fe80::1"]) == (
        'from="10.0.0.2,fe80::1",restrict ssh-ed25519 A\n'
    )
    assert ssh.authorized_keys("ssh-ed25519 A", []) == "restrict ssh-ed25519 A\n"


def test_sshd_accepts_the_configuration(tmp_path: Path) -> None:
    key = ssh.make_key(tmp_path / "host_key")
    assert ssh.public_key({"k": key}, "k", "h") == key
    assert (tmp_path / "host_key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "sshd_config").write_text(ssh.server_config(tmp_path, 2222, sys.executable))
    Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [ssh.require("sshd", "openssh-server"), "-T", "-f", str(tmp_path / "sshd_config")],
        capture_output=True,
        text=True,
        check=True,
    )
    effective = done.stdout.splitlines()
    wanted = ["passwordauthentication no", "permitrootlogin without-password", "disableforwarding yes", "port 2222"]
    wanted += ["permittty no", "kbdinteractiveauthentication no", "usepam no", "pidfile none", "strictmodes yes"]
    assert [line for line in wanted if line not in effective] == []


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({}, None),
    ],
)
def test_cpu_limits(tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert devices.cgroup_cpu_limit(tmp_path) == limit
    count = len(os.sched_getaffinity(0))
    assert devices.allowed_cpus(tmp_path) == (count if limit is None else max(1, min(count, int(limit))))


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3.0),
        ("0::/a/b", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "300000 100000"}, 2.0),
        ("0::/a/b", {"c/cpu.max": "100000 100000"}, None),
        ("0::/../outside", {"cpu.max": "150000 100000"}, 1.5),
        (
            "4:memory:/x\n1:cpu,cpuacct:/docker/1/job",
            {"cpu,cpuacct/docker/1/cpu.cfs_quota_us": "250000", "cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        ("1:cpu:/a\n0::/", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/x", {"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("nonsense\n::", {}, None),
    ],
)
def test_the_quotas_of_all_groups_around_count(
    tmp_path: Path, own: str, files: dict[str, str], limit: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert devices.cgroup_cpu_limit(tmp_path, own) == limit


@pytest.mark.parametrize(
    ("drivers", "expected"),
    [
        ({}, (False, False)),
        ({"efa_0": "efa"}, (True, False)),
        ({"rdmap0s6": "efa"}, (True, False)),
        ({"mlx5_0": "mlx5_core"}, (False, True)),
    ],
)
def test_efa_is_known_by_its_driver(tmp_path: Path, drivers: dict[str, str], expected: tuple[bool, bool]) -> None:
    root = tmp_path / "infiniband"
    for name, driver in drivers.items():
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (root / name / "device").mkdir(parents=True)
        (root / name / "device" / "driver").symlink_to(tmp_path / "drivers" / driver)
    assert devices.efa_devices(root) == expected


def test_an_interface_that_is_not_there_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "eth7").mkdir()
    assert network.choose_interface("eth7", ["localhost"], False, tmp_path) == "eth7"
    assert network.choose_interface("eth8", ["localhost"], False, tmp_path) == "lo"
    assert network.choose_interface("eth8", ["no-such-host.invalid"], False, tmp_path) == "eth8"
    assert network.choose_interface("eth8", ["no-such-host.invalid"], True, tmp_path) == "lo"
