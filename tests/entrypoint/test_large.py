"""Jobs of hundreds and thousands of hosts: one real first host, and others that only speak the protocol."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cluster import SOURCE, MakeCluster
from shoal_entrypoint.limits import LONGEST, leave_out, refused

SECRET = "abc"
# Every other host of the job, all in one process.
OTHERS = f"""
import asyncio, json, sys
sys.path.insert(0, {str(SOURCE)!r})
from shoal_entrypoint.control.secret import WORKER, Session, new_nonce
names = json.load(open(sys.argv[1]))["hosts"][1:]
async def host(name):
    for _ in range(600):
        try:
            reader, writer = await asyncio.open_connection("10.99.0.1", 7593, limit=1 << 24)
            break
        except OSError:
            await asyncio.sleep(0.1)
    nonce = new_nonce()
    writer.write(json.dumps({{"type": "hello", "host": name, "nonce": nonce}}).encode() + b"\\n")
    challenge = json.loads(await reader.readline())
    session = Session(b"{SECRET}", WORKER, name, nonce, challenge["nonce"])
    def say(kind, **fields):
        writer.write(session.sign(json.dumps({{"type": kind, **fields}}).encode()) + b"\\n")
    async def hear(kind):
        message = json.loads(session.verify((await reader.readline()).rstrip(b"\\n")))
        assert message["type"] == kind, message
        return message
    say("answer")
    await hear("welcome")
    say("card", card={{"of": name}})
    cards = (await hear("cards"))["cards"]
    say("ready")
    await hear("go")
    say("done", exit_code=0, failure=None)
    result = await hear("result")
    say("bye")
    await writer.drain()
    writer.close()
    return len(cards), cards[name]["of"] == name, result["exit_code"]
async def main():
    print(json.dumps(sorted(set(await asyncio.gather(*map(host, names))))))
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
asyncio.run(main())
"""
SHOW = (
    "import json, os\nnames = ['SM_HOSTS', 'SM_TRAINING_ENV', 'SM_RESOURCE_CONFIG', 'WORLD_SIZE']\n"
    "json.dump({name: os.environ.get(name) for name in names}, open('/opt/ml/output/data/seen', 'w'))\n"
)


@pytest.mark.parametrize("count", [500, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_hosts_join_one(cluster: MakeCluster, count: int) -> None:
    one = cluster(1)
    first = one.hosts[0]
    one.names = ["algo-1"] + [f"algo-{index}.training.a-name-space.svc.cluster.local" for index in range(2, count + 1)]
    groups = [{"instance_group_name": "all", "instance_type": "ml.c5.xlarge", "hosts": one.names}]
    one.job({}, SHOW, resource={"instance_groups": groups, "current_group_name": "all"})
    first.start({"SHOAL_JOB_SECRET": SECRET})
    config = first.ml / "input" / "config" / "resourceconfig.json"
    argv = ["ip", "netns", "exec", first.namespace, sys.executable, "-c", OTHERS, str(config)]
    others = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert others.returncode == 0, others.stderr[-2000:] + first.stderr
    assert json.loads(others.stdout) == [[count, True, 0]]
    assert first.wait(120) == 0, first.stderr
    seen = json.loads((first.ml / "output" / "data" / "seen").read_text())
    assert json.loads(seen["SM_HOSTS"]) == one.names
    assert seen["WORLD_SIZE"] == str(count)
    fits = count == 500
    assert (seen["SM_RESOURCE_CONFIG"] is not None) == fits
    assert ("train: SM_RESOURCE_CONFIG is left out" in first.stderr) != fits
    assert (seen["SM_TRAINING_ENV"] is None) == ("train: SM_TRAINING_ENV is left out" in first.stderr)


def test_an_argument_that_linux_does_not_take_is_named(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({"text": "x" * 200_000, "lr": "0.1"}, SHOW)
    one.start()
    assert one.wait() == [1]
    failure = one.hosts[0].failure
    assert failure.endswith(
        f"cannot be started: the value of --text has 200000 bytes, and Linux takes {LONGEST}: put it into a file"
    )
    assert len(failure.splitlines()) == 1


def test_an_argument_with_a_zero_byte_is_named(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({"text": "a\0b"}, SHOW)
    one.start()
    assert one.wait() == [1]
    assert one.hosts[0].failure.endswith("the value of --text has a zero byte, which no argument can have")


def test_arguments_that_are_too_long_together_are_counted(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({f"h{number}": "x" * 100_000 for number in range(70)}, SHOW)
    one.start()
    assert one.wait() == [1]
    assert "are too long together" in one.hosts[0].failure
    assert len(one.hosts[0].failure.splitlines()) == 1


def test_the_longest_variable_is_the_longest_that_linux_takes() -> None:
    name = "SM_X"
    fits = {name: "x" * (LONGEST - len(name) - 1)}
    longer = {name: fits[name] + "x"}
    assert leave_out(fits) == fits
    assert leave_out(longer) == {}
    subprocess.run(["/bin/true"], env=fits, check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true"], env=longer, check=True)
    assert refused(["true"], longer).startswith("the variable SM_X has")


def test_a_name_that_no_variable_can_have_is_left_out(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({}, SHOW, inputs={"a=b": {}, "c": {}})
    one.start()
    assert one.wait() == [0], one.hosts[0].failure
    assert "train: 'SM_CHANNEL_A=B' is left out" in one.hosts[0].stderr


def test_input_may_be_read_only_and_code_too(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({"sagemaker_program": "train.sh"}, files={"train.sh": "#!/bin/sh\nexit 0\n"})
    host = one.hosts[0]
    mounts = "".join(
        f"mount --bind /opt/ml/{name} /opt/ml/{name}; mount -o remount,bind,ro /opt/ml/{name}\n"
        for name in ("input", "code")
    )
    host.start({}, mounts)
    assert host.wait() == 1
    assert host.failure.startswith("/opt/ml/code/train.sh: is not executable, and cannot be made so: Read-only")
    (host.code / "train.sh").chmod(0o755)
    (host.ml / "output" / "failure").unlink()
    host.start({}, mounts)
    assert host.wait() == 0, host.stderr


def test_a_folder_that_cannot_be_made_is_named(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({}, SHOW)
    one.hosts[0].start({}, "mkdir /run/ml; mount --bind /run/ml /opt/ml; mount -o remount,bind,ro /opt/ml\n")
    assert one.wait() == [1]
    assert "train: /opt/ml/output/failure: cannot be written" in one.hosts[0].stderr
    assert "/opt/ml/code: cannot be made: Read-only file system. User 0 must be able" in one.hosts[0].stderr
    assert "Traceback" not in one.hosts[0].stderr
