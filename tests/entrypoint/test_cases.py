"""Existing jobs, as measured with the toolkit they run with today: the same files in, the same command lines,
environments, exit codes and failure texts out. Where `train` differs on purpose, DIFFERENT says how and why.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired, TypedDict

import pytest
from cluster import SHIM, Host, MakeCluster, until


class Group(TypedDict):
    """A host group in resourceconfig.json."""

    instance_group_name: str
    instance_type: str
    hosts: list[str]


class Resource(TypedDict):
    """resourceconfig.json."""

    current_host: str
    current_instance_type: str
    current_group_name: str
    hosts: list[str]
    instance_groups: NotRequired[list[Group]]
    network_interface_name: str


FakeTools = TypedDict(
    "FakeTools",
    {
        "names": list[str],
        "nvidia-smi --list-gpus prints N lines starting 'GPU '": NotRequired[int],
        "neuron-ls -j prints": NotRequired[str],
    },
)
Inputs = TypedDict(
    "Inputs",
    {
        "hyperparameters.json": dict[str, str] | None,
        "resourceconfig.json": Resource,
        "inputdataconfig.json": dict[str, dict[str, str]] | None,
        "files": dict[str, str],
        "env": dict[str, str],
        "fake_tools_on_PATH": FakeTools,
    },
)


class Call(TypedDict):
    """What RECORDER notes about a call."""

    argv: list[str]
    cwd: str
    env: dict[str, str]


class ExpectedCall(TypedDict):
    """What a call is compared with."""

    argv: list[str]
    cwd: str
    env: NotRequired[dict[str, str]]
    env_absent: NotRequired[list[str]]


Expect = TypedDict(
    "Expect",
    {
        "exit_code": int,
        # A text may also be {"starts_with": ..., "ends_with": ...}, but only in cases whose failure DIFFERENT replaces.
        "files_under_/opt/ml": NotRequired[dict[str, str]],
        "captured": NotRequired[dict[str, list[ExpectedCall]]],
        # Method and path; of uploads also their length, and a null.
        "s3_requests": NotRequired[list[list[str | int | None]]],
        "code_dir_listing": NotRequired[list[str]],
    },
)


class Case(TypedDict):
    """One case, without what only people read."""

    id: str
    inputs: Inputs
    expect: Expect


class Difference(TypedDict, total=False):
    """What replaces parts of Expect."""

    why: str
    exit_code: int
    failure: str | None
    env_absent: list[str]


CASES = Path(__file__).parents[3] / "shared" / "cases" / "entrypoint.json"

# Cases that are not one run of `train` on given files: test_case_lifecycles.py reads and runs them.
NOT_RUNS = (
    "mpi_worker_lifecycle",
    "mpi_user_failure_two_hosts",
    "sigterm_semantics",
    "framework_oserror_without_errno_must_fail",
    "gloo_enforce_swallowed",
    "env_submit_dir_and_log_level_ignored",
)

# Runs with an S3 beside them.
WITH_S3 = ("source_s3", "intermediate_upload")

# What differs on purpose: the expectation that replaces the measured one.
DIFFERENT: dict[str, Difference] = {
    "exit_code_flattened": {
        "why": "the exit code is the user's own, and the message is what the script said last",
        "exit_code": 3,
        "failure": 'ExecuteUserScriptError:\nExitCode 3\nErrorMessage "err-line"\nCommand "{PYTHON} -- train.py"',
    },
    "oom_hint": {"why": "the exit code is the user's own", "exit_code": 137},
    "no_framework_module": {
        "why": "every launcher gives every rank MASTER_ADDR; NCCL_DEBUG is a default",
        "env_absent": [],
    },
    "missing_hyperparameters_file": {
        "why": "one clear line instead of a traceback, and 1 instead of a number that looks like the user's",
        "exit_code": 1,
        "failure": "/opt/ml/input/config/hyperparameters.json: not found."
        " The platform writes it; for a run by hand, make it first.",
    },
    "mpi_no_sshd": {
        "why": "one host needs no sshd; the fake mpirun runs",
        "exit_code": 0,
        "failure": None,
    },
}

RECORDER = """\
import json, os, sys
name = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1].startswith("@") else "@user"
record = {"argv": sys.argv if name == "@user" else sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
os.makedirs("/opt/ml/capture", exist_ok=True)
json.dump(record, open(f"/opt/ml/capture/{'user' if name == '@sh' else name[1:]}.json", "w"))
"""
SHELL_RECORDER = '#!/bin/sh\nexec {python} /opt/ml/recorder.py @sh "$@"\n'

# Serves one object from the machine's disk, as S3 does for HEAD and GET, takes any, and notes what it was asked for.
S3_STUB = """\
import http.server, pathlib, sys
here = pathlib.Path(sys.argv[1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        data = (here / "object").read_bytes()
        with (here / "requests").open("a") as file:
            file.write(f"{self.command} {self.path.partition('?')[0]}\\n")
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Fri, 20 Nov 2026 14:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
    do_GET = do_HEAD
    def do_PUT(self):
        length = self.headers["Content-Length"]
        self.rfile.read(int(length))
        with (here / "requests").open("a") as file:
            file.write(f"PUT {self.path.partition('?')[0]} {length}\\n")
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *words): pass
server = http.server.HTTPServer(("127.0.0.1", 9000), Handler)
(here / "up").touch()
server.serve_forever()
"""


@contextlib.contextmanager
def s3_stub(host: Host) -> Iterator[Path]:
    """An S3 with sourcedir.tar.gz in it, inside the host."""
    folder = host.folder / "s3"
    folder.mkdir()
    with tarfile.open(folder / "object", "w:gz") as tar:
        for name, text in (("train.py", RECORDER), ("lib/x.py", "")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    argv = ["ip", "netns", "exec", host.namespace, sys.executable, "-c", S3_STUB, str(folder)]
    with subprocess.Popen(argv) as server:
        try:
            until((folder / "up").exists)
            yield folder
        finally:
            server.kill()


def run_with_s3(cluster: MakeCluster, case: str) -> tuple[Host, Expect, list[list[str]]]:
    """The host, what is expected of it, and the requests that S3 got."""
    cases = {case["id"]: case for case in read_cases()} if CASES.exists() else {}
    if case not in cases:
        pytest.skip(f"{CASES} is not on this machine")
    host = cluster(1).hosts[0]
    write_files(host, cases[case]["inputs"])
    with s3_stub(host) as s3:
        host.start(cases[case]["inputs"]["env"])
        assert host.wait() == 0, host.stderr
        requests = [line.split() for line in (s3 / "requests").read_text().splitlines()]
    return host, cases[case]["expect"], requests


def test_code_comes_from_s3(cluster: MakeCluster) -> None:
    host, expect, requests = run_with_s3(cluster, "source_s3")
    check_call(json.loads((host.ml / "capture" / "user.json").read_text()), expect["captured"]["user"][0], {})
    assert requests == expect["s3_requests"]
    listing = sorted(["."] + [str(path.relative_to(host.code)) for path in host.code.rglob("*")])
    assert listing == expect["code_dir_listing"]


def test_intermediate_output_is_uploaded_while_the_job_runs(cluster: MakeCluster) -> None:
    host, expect, requests = run_with_s3(cluster, "intermediate_upload")
    assert requests == [[str(word) for word in request[:3]] for request in expect["s3_requests"]], host.stderr
    check_files(host, expect, {})


def read_cases() -> list[Case]:
    cases: list[Case] = json.loads(CASES.read_text())["cases"]
    return cases


def load() -> list[pytest.ParameterSet]:
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"{CASES} is not on this machine"))]
    parameters = []
    for case in read_cases():
        if case["id"] not in NOT_RUNS and case["id"] not in WITH_S3:
            parameters.append(pytest.param(case, id=case["id"]))
    return parameters


def tool(name: str, inputs: Inputs) -> str:
    """A fake tool that answers a probe or records how it was called."""
    described = inputs["fake_tools_on_PATH"]
    if name == "nvidia-smi":
        count = described.get("nvidia-smi --list-gpus prints N lines starting 'GPU '", 0)
        return "#!/bin/sh\n" + "".join(f"echo 'GPU {index}: fake'\n" for index in range(count))
    if name == "neuron-ls":
        return f"#!/bin/sh\necho '{described.get('neuron-ls -j prints', '[]')}'\n"
    return f'#!/bin/sh\nexec {sys.executable} /opt/ml/recorder.py @{name} "$@"\n'


def write_files(host: Host, inputs: Inputs) -> None:
    (host.ml / "recorder.py").write_text(RECORDER)
    for path, text in inputs["files"].items():
        target = host.ml / Path(path).relative_to("/opt/ml")
        target.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("<recorder.py"):
            text = RECORDER
        elif text.startswith("<recorder.sh"):
            text = SHELL_RECORDER.format(python=sys.executable)
        target.write_text(text)
    for name in inputs["fake_tools_on_PATH"]["names"]:
        (host.tools / name).write_text(tool(name, inputs))
        (host.tools / name).chmod(0o755)
    config = host.ml / "input" / "config"
    if inputs["hyperparameters.json"] is not None:
        (config / "hyperparameters.json").write_text(json.dumps(inputs["hyperparameters.json"]))
    if inputs["inputdataconfig.json"] is not None:
        (config / "inputdataconfig.json").write_text(json.dumps(inputs["inputdataconfig.json"]))
    resource = inputs["resourceconfig.json"].copy()
    if host.name != resource["current_host"]:
        resource["current_host"] = host.name
        groups = [g for g in resource.get("instance_groups", []) if host.name in g["hosts"]]
        resource["current_group_name"] = groups[0]["instance_group_name"] if groups else "homogeneousCluster"
    (config / "resourceconfig.json").write_text(json.dumps(resource))


def expected_argv(words: list[str]) -> list[str]:
    values = {"{PYTHON}": sys.executable, "{GETHOSTNAME_SO}": str(SHIM)}
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words


def squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def without_cpus(name: str, value: str | None) -> object:
    return {**json.loads(value), "num_cpus": 0} if value is not None and name == "SM_TRAINING_ENV" else value


@pytest.mark.parametrize("case", load())
def test_a_measured_job(cluster: MakeCluster, case: Case) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("the cases fake the number of GPUs, and this machine has real ones")
    inputs, expect = case["inputs"], case["expect"]
    different = DIFFERENT.get(case["id"], {})
    resource = inputs["resourceconfig.json"]
    hosts = cluster(names=resource["hosts"])
    for host in hosts.hosts:
        write_files(host, inputs)
    env = {**inputs["env"], "PIP_TARGET": "/opt/ml/code"} if case["id"] == "python_package" else dict(inputs["env"])
    if "FI_PROVIDER" in json.dumps(expect.get("captured", {})).replace('"env_absent": ["FI_PROVIDER"]', ""):
        env["SHOAL_EFA"] = "1"  # the toolkit goes by instance type, `train` by the device
    hosts.start(env)
    here = next(host for host in hosts.hosts if host.name == resource["current_host"])
    code = here.wait()
    assert code == different.get("exit_code", expect["exit_code"]), here.stderr
    check_files(here, expect, different)
    for name, calls in expect.get("captured", {}).items():
        check_call(json.loads((here.ml / "capture" / f"{name}.json").read_text()), calls[0], different)


def check_files(here: Host, expect: Expect, different: Difference) -> None:
    files: dict[str, str | None] = dict(expect.get("files_under_/opt/ml", {}))
    if "failure" in different:
        files = {"/opt/ml/output/failure": different["failure"]}
    for path, text in files.items():
        target = here.ml / Path(path).relative_to("/opt/ml")
        if text is None:
            assert not target.exists()
        else:
            assert squeeze(target.read_text()) == squeeze(text.replace("{PYTHON}", sys.executable))


def check_call(call: Call, expected: ExpectedCall, different: Difference) -> None:
    assert call["argv"] == expected_argv(expected["argv"])
    assert call["cwd"] == expected["cwd"]
    for name, value in expected.get("env", {}).items():
        if name != "SM_NUM_CPUS":
            assert without_cpus(name, call["env"].get(name)) == without_cpus(name, value), name
    for name in different.get("env_absent", expected.get("env_absent", [])):
        assert name not in call["env"]
