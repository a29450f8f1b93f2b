"""Submission, status, logs and stop: the official client against an API server that keeps what it is sent."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer, running
from job_file import JobFile

from shoal.cli import app

TO = ("--to", "kubernetes")
PLACED = (*TO, "--output", "pvc://results", "--channel", "train=pvc://data")

Shoal = Callable[..., str]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with running(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        yield server


def pod(name: str, phase: str, **state: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase}
    if state:
        status["containerStatuses"] = [
            {"name": "train", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        ]
    return {
        "metadata": {"name": name, "labels": {"shoal.job": "digits"}},
        "spec": {"containers": [{"name": "train"}], "nodeName": "node-a"},
        "status": status,
    }


def ended(code: int, message: str, second: int) -> dict[str, Any]:
    return {"exitCode": code, "message": message, "finishedAt": f"2026-01-01T00:00:{second:02}Z"}


@pytest.mark.parametrize("kind", ["Job", "MPIJob", "PyTorchJob", "TrainJob"])
def test_from_submission_to_removal(server: ApiServer, job: JobFile, shoal: Shoal, kind: str) -> None:
    said = shoal("submit", job.write(), *PLACED, "--kind", kind, "--network-policy")
    assert said.startswith(f"{kind} digits created in namespace ml")
    assert {"configmaps", "secrets", "networkpolicies"} <= {plural for plural, _name in server.objects}
    plural = f"{kind.lower()}s"
    made = server.objects[plural, "digits"]
    for (part, _name), value in server.objects.items():
        owners = value["metadata"].get("ownerReferences", [])
        assert [owner["uid"] for owner in owners] == ([made["metadata"]["uid"]] if part != plural else [])
    assert shoal("status", "digits", *TO).splitlines()[0] == "digits: InProgress (Pending)"
    shoal("stop", "digits", *TO)
    assert made["spec"].get("suspend") or made["spec"]["runPolicy"]["suspend"]
    assert shoal("status", "digits", *TO, exit_code=130).splitlines()[0] == "digits: Stopped (Suspended)"
    shoal("stop", "digits", *TO, "--remove")
    assert server.objects == {}


def test_what_is_sent_is_what_dry_run_prints(server: ApiServer, job: JobFile, shoal: Shoal) -> None:
    import yaml

    printed = list(yaml.safe_load_all(shoal("submit", job.write(), *PLACED, "--dry-run")))
    assert server.objects == {}
    shoal("submit", job.write(), *PLACED)
    sent = list(server.objects.values())
    for value in sent:
        del value["metadata"]["uid"]
        value["metadata"].pop("ownerReferences", None)
    # A new secret each time.
    texts = [each.pop("stringData")["secret"] for each in (*sent, *printed) if each["kind"] == "Secret"]
    assert [len(text) for text in texts] == [64, 64]
    assert texts[0] != texts[1]
    assert sent == printed


def test_a_job_that_fails(server: ApiServer, job: JobFile, shoal: Shoal) -> None:
    shoal("submit", job.write(), *PLACED)
    server.pods = [
        pod("digits-1-b", "Failed", terminated=ended(1, "ValueError: boom", 3)),
        pod("digits-0-a", "Failed", terminated=ended(1, "told by the other", 5)),
    ]
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "limit"}
    server.objects["jobs", "digits"]["status"] = {"conditions": [failed]}
    told = json.loads(shoal("status", "digits", *TO, "--json", exit_code=1))
    assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == ("Failed", "BackoffLimitExceeded")
    assert told["FailureReason"] == "ValueError: boom"  # of the first
    assert [(host["Host"], host["ExitCode"]) for host in told["Shoal"]["Hosts"]] == [
        ("digits-0-a", 1),
        ("digits-1-b", 1),
    ]


def test_a_job_that_completes(server: ApiServer, job: JobFile, shoal: Shoal) -> None:
    shoal("submit", job.write(), *PLACED)
    complete = {"type": "Complete", "status": "True", "reason": "CompletionsReached"}
    server.objects["jobs", "digits"]["status"] = {"conditions": [complete]}
    assert shoal("status", "digits", *TO).startswith("digits: Completed (CompletionsReached)")


def test_a_pod_that_waits_says_why(server: ApiServer, job: JobFile, shoal: Shoal) -> None:
    shoal("submit", job.write(), *PLACED)
    server.pods = [pod("digits-0-a", "Pending", waiting={"reason": "ImagePullBackOff"})]
    assert "ImagePullBackOff" in shoal("status", "digits", *TO)


@pytest.mark.parametrize("options", [(), ("--follow",)])
def test_logs(server: ApiServer, job: JobFile, shoal: Shoal, options: tuple[str, ...]) -> None:
    shoal("submit", job.write(), *PLACED)
    server.pods = [pod("digits-0-a", "Running"), pod("digits-1-b", "Running"), pod("digits-2-c", "Pending")]
    server.logs = {"digits-0-a": "one\ntwo\n", "digits-1-b": "three"}
    lines = shoal("logs", "digits", *TO, *options).splitlines()
    assert sorted(lines) == ["digits-0-a | one", "digits-0-a | two", "digits-1-b | three"]


def test_a_refused_job_leaves_nothing(server: ApiServer, job: JobFile, refused: Shoal) -> None:
    server.refuse = "jobs"
    line = refused("submit", job.write(), *PLACED)
    assert line == "Kubernetes, creating Job digits: jobs 'digits' is forbidden: exceeded quota: small"
    assert server.objects == {}


def test_a_name_that_is_taken(server: ApiServer, job: JobFile, shoal: Shoal, refused: Shoal) -> None:
    shoal("submit", job.write(), *PLACED)
    before = copy.deepcopy(server.objects)
    assert "already exists: give another name with --job-name" in refused("submit", job.write(), *PLACED)
    assert server.objects == before


def test_an_operator_that_is_not_there(server: ApiServer, job: JobFile, refused: Shoal) -> None:
    server.operators.remove("mpijobs")
    line = refused("submit", job.write(), *PLACED, "--kind", "MPIJob")
    assert "is the namespace there, and the operator of this --kind installed?" in line
    assert server.objects == {}


@pytest.mark.parametrize("verb", ["status", "logs", "stop"])
def test_a_job_that_is_not_there(server: ApiServer, refused: Shoal, verb: str) -> None:
    assert refused(verb, "nobody", *TO).startswith("nobody: there is no such job in namespace ml")


def test_no_kubeconfig(job: JobFile, refused: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(job.path / "nowhere"))
    assert refused("status", "digits", *TO).startswith("no Kubernetes cluster is configured: ")


def test_a_context_that_is_not_there(server: ApiServer, refused: Shoal) -> None:
    line = refused("status", "digits", *TO, "--context", "there")
    assert line.startswith("no Kubernetes cluster is configured: ")
    assert line.endswith("set KUBECONFIG, or give another --context")


def test_a_cluster_that_does_not_answer(server: ApiServer, refused: Shoal) -> None:
    server.close()
    assert "no answer" in refused("status", "digits", *TO)


def test_unknown_targets_are_the_parser_s(job: JobFile) -> None:
    with pytest.raises(Exception, match="'mesos' is not"):
        app(["submit", job.write(), "--to", "mesos"], standalone_mode=False)
