"""Modules and commands as entry points: how their lines are read, and real runs of them under every launcher."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from cluster import Cluster, Host, MakeCluster, until
from shoal_entrypoint import code, command
from shoal_entrypoint.configuration import load_job, load_resource
from shoal_entrypoint.outcome import JobError

# Notes how it was called, by rank.
REPORT = """\
import json, os, sys
names = ["RANK", "WORLD_SIZE", "SM_USER_ENTRY_POINT", "SM_MODULE_NAME", "SM_CURRENT_HOST"]
told = {name: os.environ.get(name) for name in names}
told.update(argv=sys.argv, main=__name__ == "__main__", package=__package__, mpi4py="mpi4py" in sys.modules)
with open(f"/opt/ml/output/data/rank-{os.environ['RANK']}.json", "w") as file:
    json.dump(told, file)
"""
TWO_RANKS = {"sagemaker_mpi_num_of_processes_per_host": "2"}
LAUNCHERS = [
    pytest.param({}, id="process"),
    pytest.param({"sagemaker_mpi_enabled": "true", **TWO_RANKS}, id="mpi"),
    pytest.param({"sagemaker_distributed_dataparallel_enabled": "true", **TWO_RANKS}, id="smddp"),
    pytest.param({"sagemaker_torch_distributed_enabled": "true", **TWO_RANKS}, id="torchrun", marks=pytest.mark.slow),
]


def reports(host: Host) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((host.ml / "output" / "data").glob("rank-*.json"))]


def with_torchrun(one: Cluster, flags: dict[str, str]) -> None:
    if "sagemaker_torch_distributed_enabled" in flags:
        pytest.importorskip("torch")
        for host in one.hosts:
            (host.tools / "torchrun").symlink_to(Path(sys.executable).parent / "torchrun")


@pytest.mark.parametrize("flags", LAUNCHERS)
def test_a_module_runs_under_every_launcher(cluster: MakeCluster, flags: dict[str, str]) -> None:
    one = cluster(1)
    with_torchrun(one, flags)
    files = {"package/__init__.py": "", "package/train.py": REPORT}
    one.job({"sagemaker_program": json.dumps("-m package.train"), "lr": "0.1", **flags}, files=files)
    one.start()
    assert one.wait(90) == [0], one.hosts[0].stderr
    found = reports(one.hosts[0])
    assert len(found) == (2 if flags else 1)
    for told in found:
        assert told["argv"] == ["/opt/ml/code/package/train.py", "--lr", "0.1"]
        assert (told["main"], told["package"]) == (True, "package")
        assert (told["SM_USER_ENTRY_POINT"], told["SM_MODULE_NAME"]) == ("-m package.train", "package.train")
        assert told["mpi4py"] is (bool(flags) and "torch" not in str(flags))


@pytest.mark.parametrize("flags", LAUNCHERS)
def test_a_command_runs_under_every_launcher(cluster: MakeCluster, flags: dict[str, str]) -> None:
    """No shell reads it, and it beats the program that an SDK cannot leave out."""
    one = cluster(1)
    with_torchrun(one, flags)
    tool = one.hosts[0].tools / "launch"
    tool.write_text(f"#!{sys.executable}\n{REPORT}")
    tool.chmod(0o755)
    words = ["launch", "a b", "$(touch /opt/ml/output/data/no)", "$HOME", "$(MASTER_PORT)", "$$(MASTER_PORT)", "; x"]
    never = "raise SystemExit(9)"
    one.job({"sagemaker_command": json.dumps(words), "text": "it's", **flags}, never)
    one.start()
    assert one.wait(90) == [0], one.hosts[0].stderr
    found = reports(one.hosts[0])
    assert len(found) == (2 if flags else 1)
    for told in found:
        arguments = [*words[1:4], "7777", "$(MASTER_PORT)", "; x", "--text", "it's"]
        assert told["argv"] == [str(tool), *arguments] or told["argv"] == ["launch", *arguments]
        assert told["SM_MODULE_NAME"] == "launch"


def test_a_command_from_the_environment_without_the_hyperparameters(cluster: MakeCluster) -> None:
    """Text is split at blanks and quotes; a bare name may be a file that came with the code, executable or not."""
    one = cluster(1)
    one.job({"sagemaker_command_arguments": "false", "lr": "1"}, files={"run": f"#!{sys.executable}\n{REPORT}"})
    one.start({"SHOAL_COMMAND": "run 'two words' end"})
    assert one.wait() == [0], one.hosts[0].stderr
    assert [told["argv"] for told in reports(one.hosts[0])] == [["./run", "two words", "end"]]


def test_a_command_may_be_another_python(cluster: MakeCluster) -> None:
    """It must not find the modules of the one that runs `train`."""
    one = cluster(1)
    one.job({"sagemaker_command": '["sh", "-c", "echo $PYTHONPATH"]'})
    one.start({"PYTHONPATH": "/my/modules"})
    assert one.wait() == [0], one.hosts[0].stderr
    assert one.hosts[0].stdout == "/opt/ml/code:/my/modules\n"


def test_a_command_without_any_file(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({})
    (one.hosts[0].ml / "input" / "config" / "hyperparameters.json").unlink()
    one.start({"SHOAL_COMMAND": '["sh", "-c", "echo $SM_CURRENT_HOST"]'})
    assert one.wait() == [0], one.hosts[0].stderr
    assert one.hosts[0].stdout == "algo-1\n"


def test_a_command_that_is_nowhere_is_said_in_a_line(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({"sagemaker_command": '["acelerate", "launch"]'}, files={"train.py": "", "lib/a.py": ""})
    one.start()
    assert one.wait() == [1]
    failure = one.hosts[0].failure
    assert failure.startswith("sagemaker_command: acelerate: no such command on PATH (")
    assert failure.endswith(
        "nor file in /opt/ml/code; files there: lib/a.py, train.py."
        " Name one of these, or install it (requirements.txt)."
    )
    assert "\n" not in failure


def test_a_command_may_come_with_the_requirements(cluster: MakeCluster) -> None:
    one = cluster(1)
    setup = (
        "from setuptools import setup\n"
        "setup(name='brought', version='1', py_modules=['brought'],"
        " entry_points={'console_scripts': ['bring = brought:main']})\n"
    )
    module = "def main():\n    print('brought by pip')\n"
    files = {"requirements.txt": "./brought\n", "brought/setup.py": setup, "brought/brought.py": module}
    one.job({"sagemaker_command": "bring"}, files=files)
    pip = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_PREFIX": "/opt/ml/pip", "PIP_NO_DEPS": "1"}
    site = f"/opt/ml/pip/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    host = one.hosts[0]
    path = f"{host.tools}:{one.folder}/bin:/opt/ml/pip/bin:/usr/bin:/bin"
    host.start({**pip, "PATH": path, "PYTHONPATH": site})
    assert host.wait(60) == 0, host.stderr
    assert host.stdout.endswith("brought by pip\n")


def test_sigterm_reaches_only_a_python_that_is_the_command(cluster: MakeCluster) -> None:
    """As for a script: its data loaders must not die while it saves."""
    one = cluster(1)
    script = (
        "import signal, subprocess, sys, time\nchild = subprocess.Popen(['sleep', '60'])\n"
        "def stop(*_):\n    time.sleep(0.3)\n    print(child.poll(), flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nopen('/opt/ml/output/data/running', 'w').close()\ntime.sleep(60)\n"
    )
    one.job({"sagemaker_command": json.dumps([sys.executable, "train.py"])}, script)
    one.start()
    until((one.hosts[0].ml / "output" / "data" / "running").exists)
    one.hosts[0].signal(signal.SIGTERM)
    assert one.wait() == [0]
    assert one.hosts[0].stdout == "None\n"


def test_sigterm_reaches_the_ranks_of_a_torchrun_of_the_user_s_own(cluster: MakeCluster) -> None:
    """A stand-in for any launcher that marks its ranks as torchrun does."""
    one = cluster(1)
    rank = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "open('/opt/ml/output/data/running', 'w').close()\ntime.sleep(60)\n"
    )
    launcher = (
        "import os, signal, subprocess, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "sys.exit(subprocess.call([sys.executable, 'rank.py'], env={**os.environ, 'TORCHELASTIC_RUN_ID': 'x'}))\n"
    )
    words = json.dumps([sys.executable, "launcher.py"])
    one.job({"sagemaker_command": words}, files={"rank.py": rank, "launcher.py": launcher})
    one.start()
    until((one.hosts[0].ml / "output" / "data" / "running").exists)
    one.hosts[0].signal(signal.SIGTERM)
    assert one.wait() == [0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["a", "", "c d"], ("a", "", "c d")),
        ('["a", "b"]', ("a", "b")),
        ("a 'b c' \"d\" e\\ f", ("a", "b c", "d", "e f")),
        ("a $(b) ; c > d", ("a", "$(b)", ";", "c", ">", "d")),
    ],
)
def test_words_of_a_command(value: object, words: tuple[str, ...]) -> None:
    assert command.parse("here", value) == words


@pytest.mark.parametrize("value", [[], [""], ["a", 1], {"a": 1}, 7, True, "  ", "[1]", "[" * 3000, "a 'b", ["", "a"]])
def test_a_command_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(JobError, match=r"^here: ") as caught:
        command.parse("here", value)
    assert "\n" not in caught.value.text


@pytest.mark.parametrize("program", ["-m", "-m ", "-m a b", "-m a.", "-m .a", "-m 1a", "-m a;b", "-ma", "-m a/b"])
def test_a_module_s_name_that_is_none_is_refused(tmp_path: Path, program: str) -> None:
    (tmp_path / "resourceconfig.json").write_text('{"current_host": "a", "hosts": ["a"]}')
    (tmp_path / "hyperparameters.json").write_text(json.dumps({"sagemaker_program": program}))
    job = load_job(tmp_path, load_resource(tmp_path), {})
    with pytest.raises(JobError, match=r"^sagemaker_program: ") as caught:
        code.find_entry(job, tmp_path)
    assert "\n" not in caught.value.text
