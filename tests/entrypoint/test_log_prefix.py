"""Whose line it is: `[host:rank]` before lines of ranks that share a stream, when, and at no cost to the bytes."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from cluster import Cluster, Host, MakeCluster, until
from shoal_entrypoint.mpi_tags import RankTags, Untag
from shoal_entrypoint.tagging import Line, Tagger, Untagged

TORCHRUN = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
OPTIONS = "sagemaker_torch_distributed_custom_torchrun_options"


def with_torchrun(made: Cluster) -> Cluster:
    pytest.importorskip("torch")
    for host in made.hosts:
        (host.tools / "torchrun").symlink_to(Path(sys.executable).parent / "torchrun")
    return made


def stdout(host: Host) -> bytes:
    return (host.folder / "stdout").read_bytes()


def of(output: bytes, host: str, rank: int) -> list[bytes]:
    """The lines of a rank, without their prefix."""
    tag = f"[{host}:{rank}] ".encode()
    return [line[len(tag) :] for line in output.split(b"\n") if line.startswith(tag)]


# A character cut in two, a bar of carriage returns, an empty line, a long line, and one without an end.
ALL_KINDS = r"""
import os, sys, time
rank = os.environ["RANK"].encode()
os.write(1, b"caf\xc3"); time.sleep(0.2); os.write(1, b"\xa9 of " + rank + b"\n\n")
for percent in (10, 20, 30):
    os.write(1, b"\r%d%% of %b" % (percent, rank)); time.sleep(0.05)
os.write(1, b"\n")
for _ in range(16): os.write(1, rank * 65536)
os.write(1, b"\n\xff\xfe\n")
os.write(2, b"to stderr: " + rank + b"\n")
os.write(1, b"no end of " + rank)
"""


def check_all_kinds(first: Host, host: str, ranks: tuple[int, ...]) -> None:
    for rank in ranks:
        mark = b"%d" % rank
        tag = f"[{host}:{rank}] ".encode()
        own = of(stdout(first), host, rank)
        assert "café of".encode() + b" " + mark in own
        joined = b"".join(own)
        for percent in (b"10", b"20", b"30"):
            assert percent + b"% of " + mark in joined
        # Another rank's lines may stand between pieces of the long one; nothing of it is lost, nor added.
        assert sum(piece.count(mark) for piece in own if not piece.strip(mark)) == 16 * 65536
        assert b"\xff\xfe" in own
        assert own[-1] == b"no end of " + mark
        assert f"[{host}:{rank}] to stderr: {rank}\n" in first.stderr
        assert tag + b"no end of " + mark + b"\n" in stdout(first)


@pytest.mark.slow
def test_torchrun_s_ranks_have_their_names_before_lines(cluster: MakeCluster) -> None:
    two = with_torchrun(cluster())
    two.job(TORCHRUN, ALL_KINDS)
    two.start()
    assert two.wait(90) == [0, 0], two.hosts[0].stderr
    check_all_kinds(two.hosts[0], "algo-1", (0, 1))
    check_all_kinds(two.hosts[1], "algo-2", (2, 3))


def test_mpirun_s_marks_become_names_of_hosts_and_ranks(cluster: MakeCluster) -> None:
    two = cluster()
    two.job(MPI, ALL_KINDS)
    two.start()
    assert two.wait(60) == [0, 0], two.hosts[0].stderr
    check_all_kinds(two.hosts[0], "algo-1", (0, 1))
    check_all_kinds(two.hosts[0], "algo-2", (2, 3))
    assert b"<stdout>" not in stdout(two.hosts[0])
    assert "<stderr>" not in two.hosts[0].stderr
    assert b"JOB MAP" in stdout(two.hosts[0])  # --display-map: mpirun's own words


ABOUT_ITSELF = """
import json, os, sys
name = "/opt/ml/output/data/" + os.environ["RANK"]
told = {"executable": sys.executable, "prefix": sys.prefix, "argv": sys.argv, "orig": sys.orig_argv,
        "ours": sorted(n for n in os.environ if n in ("PYTHON_EXEC", "SHOAL_RANK_PIPES", "SHOAL_PYTHON_EXEC")),
        "name": __name__, "open": len(os.listdir("/proc/self/fd"))}
json.dump(told, open(name, "w"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", ["train.py", "-m pack.train"])
def test_a_rank_of_torchrun_is_the_python_that_it_would_be(cluster: MakeCluster, program: str) -> None:
    seen = []
    for prefix in ("0", ""):
        one = with_torchrun(cluster(1))
        files = {"train.py": ABOUT_ITSELF, "pack/train.py": ABOUT_ITSELF, "pack/__init__.py": ""}
        one.job({**TORCHRUN, "sagemaker_program": program, "lr": "1"}, files=files)
        one.start({"SHOAL_LOG_PREFIX": prefix})
        assert one.wait(90) == [0], one.hosts[0].stderr
        seen.append([json.loads((one.hosts[0].ml / "output" / "data" / rank).read_text()) for rank in "01"])
    assert seen[0] == seen[1]
    assert seen[0][0]["executable"] == sys.executable
    assert seen[0][0]["ours"] == []


@pytest.mark.slow
def test_the_user_s_own_python_exec_is_what_runs(cluster: MakeCluster) -> None:
    one = with_torchrun(cluster(1))
    script = "import os\nprint(os.environ['MINE'], os.environ['PYTHON_EXEC'], flush=True)\n"
    mine = f'#!/bin/sh\nMINE=yes exec {sys.executable} "$@"\n'
    one.job(TORCHRUN, script, files={"mine": mine})
    (one.hosts[0].code / "mine").chmod(0o755)
    one.start({"PYTHON_EXEC": "/opt/ml/code/mine"})
    assert one.wait(90) == [0], one.hosts[0].stderr
    for rank in (0, 1):
        assert of(stdout(one.hosts[0]), "algo-1", rank) == [b"yes /opt/ml/code/mine"]


@pytest.mark.slow
def test_ranks_that_torchrun_starts_again_have_names_too(cluster: MakeCluster) -> None:
    one = with_torchrun(cluster(1))
    script = (
        "import os\nlife = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint('life', life, flush=True)\n"
        "if life == '0':\n    raise ValueError('first life')\nif os.environ['RANK'] == '1':\n"
        "    raise KeyError('second life')\nimport time\ntime.sleep(60)\n"
    )
    one.job({**TORCHRUN, OPTIONS: "--max-restarts=1 --monitor-interval 0.1"}, script)
    one.start()
    assert one.wait(90) == [1]
    assert of(stdout(one.hosts[0]), "algo-1", 1) == [b"life 0", b"life 1"]
    assert of(stdout(one.hosts[0]), "algo-1", 0)[-1:] == [b"life 1"]
    assert "ErrorMessage \"KeyError: 'second life'\nrank 1 on algo-1\n" in one.hosts[0].failure


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--tee 3 --log-dir /opt/ml/output/data/logs", "--redirects 1"])
def test_what_torchrun_redirects_is_left_to_it(cluster: MakeCluster, options: str) -> None:
    one = with_torchrun(cluster(1))
    script = "import os, sys\nprint('said', flush=True)\nprint('complained', file=sys.stderr, flush=True)\n"
    one.job({**TORCHRUN, OPTIONS: options}, script)
    one.start()
    assert one.wait(90) == [0], one.hosts[0].stderr
    assert b"[algo-1:" not in stdout(one.hosts[0])
    if "tee" in options:
        logs = sorted((one.hosts[0].ml / "output" / "data" / "logs").glob("**/*.log"))
        assert [path.read_text() for path in logs] == ["complained\n", "said\n"] * 2
        assert "[algo-1:" not in one.hosts[0].stderr
        assert b"[default1]:said\n" in stdout(one.hosts[0])
    else:
        assert stdout(one.hosts[0]) == b""
        for rank in (0, 1):
            assert f"[algo-1:{rank}] complained\n" in one.hosts[0].stderr


@pytest.mark.slow
def test_a_torchrun_rank_killed_in_mid_line_loses_nothing(cluster: MakeCluster) -> None:
    one = with_torchrun(cluster(1))
    script = (
        "import os, time\nif os.environ['RANK'] == '1':\n"
        "    os.write(1, b'whole\\nhalf a')\n    os.kill(os.getpid(), 9)\ntime.sleep(60)\n"
    )
    one.job(TORCHRUN, script)
    one.start()
    assert one.wait(90) == [137]
    assert of(stdout(one.hosts[0]), "algo-1", 1) == [b"whole", b"half a"]
    assert 'ErrorMessage "rank 1 on algo-1' in one.hosts[0].failure


@pytest.mark.slow
def test_a_rank_s_last_words_are_found_however_much_others_say(cluster: MakeCluster) -> None:
    """In one common stream they would be more than 64 KiB before the end."""
    one = with_torchrun(cluster(1))
    script = (
        "import os, sys, time\nif os.environ['RANK'] == '1':\n"
        "    os.write(2, b'the disk is gone\\n')\n    open('/opt/ml/output/data/said', 'w').close()\n"
        "    while not os.path.exists('/opt/ml/output/data/noise'): time.sleep(0.02)\n    sys.exit(3)\n"
        "while not os.path.exists('/opt/ml/output/data/said'): time.sleep(0.02)\n"
        "os.write(2, b'noise\\n' * 200000)\nopen('/opt/ml/output/data/noise', 'w').close()\ntime.sleep(60)\n"
    )
    one.job(TORCHRUN, script)
    one.start()
    assert one.wait(90) == [3]
    assert 'ErrorMessage "rank 1 on algo-1\nthe disk is gone"' in one.hosts[0].failure


def test_an_mpi_rank_killed_in_mid_line_loses_nothing(cluster: MakeCluster) -> None:
    one = cluster(1)
    script = (
        "import os, time\nif os.environ['RANK'] == '1':\n"
        "    os.write(1, b'whole\\nhalf a')\n    time.sleep(0.5)\n    os.kill(os.getpid(), 9)\ntime.sleep(60)\n"
    )
    one.job(MPI, script)
    one.start()
    assert one.wait(60) == [137]
    assert of(stdout(one.hosts[0]), "algo-1", 1) == [b"whole", b"half a"]


@pytest.mark.parametrize(
    ("prefix", "count", "line"),
    [
        ("", "1", b"\nhello"),
        ("1", "1", b"\n[algo-1:0] hello\n"),
        ("0", "1", b"\n[1,0]<stdout>:hello"),
        ("0", "2", b"[1,0]<stdout>:hello"),
        ("", "2", b"\n[algo-1:0] hello\n"),
    ],
)
def test_an_mpi_job_with_prefixes_on_off_and_neither(
    cluster: MakeCluster, prefix: str, count: str, line: bytes
) -> None:
    one = cluster(1)
    one.job({**MPI, "sagemaker_mpi_num_of_processes_per_host": count}, "import os\nos.write(1, b'hello')\n")
    one.start({"SHOAL_LOG_PREFIX": prefix})
    assert one.wait(60) == [0], one.hosts[0].stderr
    assert line in stdout(one.hosts[0])
    assert (b"<stdout>" in stdout(one.hosts[0])) is (prefix == "0")


@pytest.mark.parametrize(("prefix", "said"), [("1", b"[algo-1:0] a\r[algo-1:0] b\n[algo-1:0] c\n"), ("0", b"a\rb\nc")])
def test_a_plain_job_has_prefixes_when_asked_for(cluster: MakeCluster, prefix: str, said: bytes) -> None:
    one = cluster(1)
    one.job({}, "import os\nos.write(1, b'a\\rb\\nc')\n")
    one.start({"SHOAL_LOG_PREFIX": prefix})
    assert one.wait() == [0], one.hosts[0].stderr
    assert stdout(one.hosts[0]) == said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "count", "said"), [("", "1", b"hi\n"), ("1", "1", b"[algo-1:0] hi\n"), ("0", "2", b"hi\nhi\n")]
)
def test_a_torchrun_job_with_prefixes_on_off_and_neither(
    cluster: MakeCluster, prefix: str, count: str, said: bytes
) -> None:
    one = with_torchrun(cluster(1))
    one.job({**TORCHRUN, "sagemaker_mpi_num_of_processes_per_host": count}, "import os\nos.write(1, b'hi\\n')\n")
    one.start({"SHOAL_LOG_PREFIX": prefix})
    assert one.wait(90) == [0], one.hosts[0].stderr
    assert stdout(one.hosts[0]) == said


def test_prefixes_of_servers_and_workers_can_be_switched_off(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({"sagemaker_parameter_server_enabled": "true"}, "import os\nos.write(1, b'hello\\n')\n")
    one.start({"SHOAL_LOG_PREFIX": "0"})
    assert one.wait() == [0], one.hosts[0].stderr
    assert stdout(one.hosts[0]) == b"hello\nhello\n"


def test_another_value_is_refused_in_one_line(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job({}, "pass")
    one.start({"SHOAL_LOG_PREFIX": "yes"})
    assert one.wait() == [1]
    assert one.hosts[0].failure == (
        "SHOAL_LOG_PREFIX: 'yes': 1 ([host:rank] before every line), 0 (before none) or nothing (where several ranks"
        " share a stream) was expected"
    )


def test_an_unfinished_line_appears_when_its_rank_is_silent(cluster: MakeCluster) -> None:
    """A rank that asks, or hangs, in mid-line is heard while it runs."""
    one = cluster(1)
    script = "import os, time\nos.write(1, b'loading ...')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    one.job({}, script + "os.write(1, b' done\\n')\n")
    one.start({"SHOAL_LOG_PREFIX": "1"})
    until(lambda: stdout(one.hosts[0]) == b"[algo-1:0] loading ...")
    (one.hosts[0].code / "go").touch()
    assert one.wait() == [0]
    assert stdout(one.hosts[0]) == b"[algo-1:0] loading ... done\n"


@pytest.mark.slow
def test_a_run_folder_that_is_no_place_for_programs_costs_the_prefix_only(cluster: MakeCluster) -> None:
    one = with_torchrun(cluster(1))
    one.job(TORCHRUN, "import os\nos.write(1, b'hi\\n')\n")
    one.hosts[0].start({}, mounts="mount -o remount,noexec /run")
    assert one.wait(90) == [0], one.hosts[0].stderr
    assert stdout(one.hosts[0]) == b"hi\nhi\n"
    assert (
        "train: the lines of ranks have no prefix: /run/shoal/rank-python: cannot be run there" in one.hosts[0].stderr
    )


@pytest.mark.slow
def test_without_root_torchrun_s_ranks_have_names(cluster: MakeCluster) -> None:
    one = with_torchrun(cluster(1))
    one.job(TORCHRUN, "import os\nos.write(1, b'hi\\n')\n")
    one.hosts[0].start_unprivileged({})
    assert one.wait(90) == [0], one.hosts[0].stderr
    assert sorted(stdout(one.hosts[0]).splitlines()) == [b"[algo-1:0] hi", b"[algo-1:1] hi"]


def test_lines_of_several_ranks_never_mix() -> None:
    line = Line()
    first, second = Tagger("[a:0] ", line), Tagger("[a:1] ", line)
    own = Untagged(line)
    out = first(b"one") + second(b"two\n") + first.flush() + second(b"\r10%\r") + own(b"launcher\n") + first(b" more\n")
    assert out == b"[a:1] two\n[a:0] one\n[a:1] 10%\r\nlauncher\n[a:0]  more\n"


def test_a_line_that_goes_on_alone_is_not_cut() -> None:
    tagger = Tagger("[a:1] ")
    out = b"".join(tagger(b"x" * 1000) for _ in range(1000)) + tagger(b"\ny\n")
    assert out == b"[a:1] " + b"x" * 1_000_000 + b"\n[a:1] y\n"


@pytest.mark.parametrize("text", ["é", "€", "𝄞"])
def test_a_character_is_not_cut_when_a_rank_is_silent_in_its_midst(text: str) -> None:
    data = text.encode()
    for cut in range(1, len(data)):
        line = Line()
        first, second = Tagger("[a:0] ", line), Tagger("[a:1] ", line)
        first(b"x" + data[:cut])
        assert (
            first.flush() + second(b"y\n") + first(data[cut:] + b"\n") == f"[a:0] x\n[a:1] y\n[a:0] {text}\n".encode()
        )


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 100])
def test_a_progress_bar_s_line_begins_with_the_tag(cut: int) -> None:
    text = b"\r10%\r20%\r30%\n\r  5%\r\n\r\nend\n"
    tagger = Tagger("[a:1] ")
    out = b"".join(tagger(text[at : at + cut]) for at in range(0, len(text), cut)) + tagger.rest()
    assert out == b"[a:1] 10%\r[a:1] 20%\r[a:1] 30%\n[a:1]   5%\r\n\r\n[a:1] end\n"


def test_empty_lines_have_no_tag_whatever_ends_them() -> None:
    text = b"a\n\n\n\nb\r\n\r\n\r\rc\n\n"
    tagger = Tagger("[a:1] ")
    assert tagger(text) == b"[a:1] a\n\n\n\n[a:1] b\r\n\r\n[a:1] c\n\n"


def tagged_as_mpirun_does(rank: int, text: bytes) -> bytes:
    return b"".join(b"[1,%d]<stdout>:%b" % (rank, line) for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("seed", range(20))
def test_mpirun_s_pieces_are_put_together_however_they_are_cut(seed: int) -> None:
    """Any pieces of ranks, in any order, and read in any pieces: what each rank wrote comes out as it was."""
    chance = random.Random(seed)
    wrote = dict.fromkeys((0, 3, 11), b"")
    stream = b"mpirun says\n"
    for _ in range(300):
        rank = chance.choice([0, 3, 11])
        alphabet = [b"word", b" ", b"\n", b"[1,", b"[", b"]", b"\xc3\xa9", b"x" * 5000]
        piece = b"".join(chance.choices(alphabet, k=chance.randint(1, 6)))
        wrote[rank] += piece
        stream += tagged_as_mpirun_does(rank, piece)
    filtered = RankTags(lambda rank: f"<{rank}> ", Line())
    out = b""
    while stream:
        size = chance.choice([1, 5, 100, 10000])
        out, stream = out + filtered(stream[:size]), stream[size:]
    out += filtered.rest()
    assert out.startswith(b"mpirun says\n")
    for rank, text in wrote.items():
        tag = b"<%d> " % rank
        got = [line[len(tag) :] for line in out.split(b"\n") if line.startswith(tag)]
        assert got == [line for line in text.split(b"\n") if line]


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_the_marks_of_an_only_rank_are_taken_away(cut: int) -> None:
    text = b"a [1, b\n\n\r10%\r20%\n[1,0]\n" + b"x" * 9000 + b"\nno end ["
    stream = b"map\n" + tagged_as_mpirun_does(0, text)
    untag = Untag()
    assert b"".join(untag(stream[at : at + cut]) for at in range(0, len(stream), cut)) + untag.rest() == b"map\n" + text
