"""What is remembered of a command's output: tracebacks by rank, however the bytes were cut, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shoal_entrypoint.capture import Capture, RankCapture, failing_rank, torchrun_cause
from shoal_entrypoint.explain import explain, shorten

PLAIN = b"""step 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("boom")
ValueError: boom
"""

CHAINED = b"""Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 4, in <module>
RuntimeError: no x
  here
"""


def feed(data: bytes, size: int) -> Capture:
    capture = Capture()
    for start in range(0, len(data), size):
        capture.feed(data[start : start + size])
    capture.finish()
    return capture


def tagged(rank: int, data: bytes) -> bytes:
    return b"".join(b"[1,%d]<stderr>:%s\n" % (rank, line) for line in data.splitlines())


def traceback(capture: Capture, rank: int | None) -> str:
    """The rank's traceback, which must be there."""
    text = capture.traceback(rank)
    assert text is not None
    return text


@pytest.mark.parametrize("size", [1, 3, 17, 4096])
def test_a_traceback_is_found_however_the_output_is_cut(size: int) -> None:
    assert feed(PLAIN, size).traceback(None) == PLAIN.decode().partition("\n")[2].strip()


@pytest.mark.parametrize("size", [1, 4096])
def test_a_chain_of_exceptions_is_one_traceback(size: int) -> None:
    assert feed(CHAINED, size).traceback(None) == CHAINED.decode().strip()
    assert explain(Capture(), feed(CHAINED, size), None).startswith("RuntimeError: no x\n")


def test_interleaved_ranks_are_told_apart() -> None:
    first, second = tagged(3, PLAIN).splitlines(True), tagged(11, PLAIN.replace(b"boom", b"bang")).splitlines(True)
    capture = feed(b"".join(line for pair in zip(first, second, strict=True) for line in pair), 7)
    assert traceback(capture, 3).endswith("ValueError: boom")
    assert traceback(capture, 11).endswith("ValueError: bang")
    assert capture.first_rank() == 3


def test_the_rank_that_mpirun_blames_is_explained_not_the_first_that_spoke() -> None:
    stderr = feed(
        tagged(0, PLAIN.replace(b"boom", b"lost peer"))
        + tagged(2, PLAIN)
        + b"--\nmpirun detected that one or more processes exited with non-zero status\n\n"
        b"  Process name: [[41185,1],2]\n  Exit code:    1\n--\n",
        50,
    )
    message = explain(Capture(), stderr, lambda rank: f"algo-{rank // 2 + 1}")
    assert message.splitlines()[:2] == ["ValueError: boom", "rank 2 on algo-2"]


LOST = PLAIN.replace(
    b"ValueError: boom",
    b"SMDDPPeerError: smddp: all_reduce #2: rank 2 on algo-2 closed its connection (its process ended)",
)


def test_a_rank_that_ended_for_another_s_sake_is_not_the_cause() -> None:
    """mpirun may see a rank of its own host first, although that only followed one of another host."""
    blamed = b"  Process name: [[41185,1],0]\n  Exit code:    1\n"
    in_part = LOST.replace(b"rank 2 on", b"rank 2 (1 in its group) on")
    for said in (
        tagged(2, PLAIN) + tagged(0, LOST),
        tagged(0, LOST) + tagged(2, PLAIN),
        tagged(0, in_part) + tagged(2, PLAIN),
    ):
        message = explain(Capture(), feed(said + blamed, 50), lambda rank: f"algo-{rank // 2 + 1}")
        assert message.splitlines()[:2] == ["ValueError: boom", "rank 2 on algo-2"]
    # What a rank caught and lived with is not what it died of, and a rank that is not named is not the cause.
    caught = PLAIN + b"step\n" * 20
    for said in (tagged(2, caught) + tagged(0, LOST), tagged(1, PLAIN) + tagged(0, LOST)):
        message = explain(Capture(), feed(said + blamed, 50), lambda rank: f"algo-{rank // 2 + 1}")
        assert message.splitlines()[1] == "rank 0 on algo-1"
    alone = explain(Capture(), feed(tagged(0, LOST) + blamed, 50), lambda rank: f"algo-{rank // 2 + 1}")
    assert "rank 2 on algo-2 closed its connection" in alone.splitlines()[0]
    assert alone.splitlines()[1] == "rank 0 on algo-1"


@pytest.mark.parametrize(
    "line",
    [
        b"RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711",
        b"DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error",
        b"torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        b"RuntimeError: smddp: reported by rank 1: all_reduce #7 (sum): rank 2 on b closed its connection",
    ],
)
def test_effects_of_all_libraries_are_known(line: bytes) -> None:
    lost = PLAIN.replace(b"ValueError: boom", line)
    said = tagged(0, lost) + tagged(2, PLAIN) + b"  Process name: [[41185,1],0]\n"
    assert explain(Capture(), feed(said, 50), lambda rank: "a").splitlines()[:2] == ["ValueError: boom", "rank 2 on a"]


@pytest.mark.parametrize("line", [b"ConnectionResetError: [Errno 104] Connection reset by peer", b"BrokenPipeError: x"])
def test_a_connection_of_the_user_s_own_is_a_cause(line: bytes) -> None:
    own = PLAIN.replace(b"ValueError: boom", line)
    said = tagged(0, own) + tagged(2, PLAIN) + b"  Process name: [[41185,1],0]\n"
    assert explain(Capture(), feed(said, 50), lambda rank: "a").splitlines()[:2] == [line.decode(), "rank 0 on a"]


def test_nor_is_it_where_torchrun_names_it() -> None:
    ranks = {local: RankCapture(2 + local, Capture(), feed(said, 50)) for local, said in enumerate((PLAIN, LOST))}
    message = explain(Capture(), feed(TORCHRUN, 100), lambda rank: f"algo-{rank // 2 + 1}", ranks=ranks)
    assert message.splitlines()[:2] == ["ValueError: boom", "rank 2 on algo-2"]


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (b"  Process name: [[1,1],12]\n  Exit code: 3", 12),
        (b"mpirun noticed that process rank 5 with PID 77 on node algo-2 exited on signal 9 (Killed).", 5),
        (b"MPI_ABORT was invoked on rank 7 in communicator MPI_COMM_WORLD", 7),
        (b"all is well", None),
    ],
)
def test_whom_mpirun_blames(text: bytes, rank: int | None) -> None:
    assert failing_rank(text) == rank


def test_memory_is_bounded_and_the_last_traceback_wins() -> None:
    capture = Capture()
    for number in range(3000):
        capture.feed(PLAIN.replace(b"boom", b"boom %d" % number) + b"x" * 1000 + b"\n")
    capture.finish()
    assert "ValueError: boom 2999" in traceback(capture, None)
    assert len(capture.tail()) < 200_000
    held = sum(block.size for block in capture._blocks.values()) + len(capture._carry)
    assert held < 20_000


def test_a_line_without_end_is_bounded() -> None:
    capture = Capture()
    for _ in range(2000):
        capture.feed(b"#" * 1000)
    assert len(capture._carry) <= 64 * 1024


def test_a_deep_traceback_keeps_its_end() -> None:
    deep = b"Traceback (most recent call last):\n" + b'  File "a.py", line 1, in f\n' * 5000 + b"RecursionError: deep\n"
    text = traceback(feed(deep, 5000), None)
    assert text.endswith("RecursionError: deep")
    assert len(text) < 20_000


def test_without_a_traceback_the_last_lines_are_the_message() -> None:
    stderr = feed(b"".join(b"line %d\n" % number for number in range(100)), 64)
    assert explain(Capture(), stderr, None).splitlines() == [f"line {number}" for number in range(80, 100)]


TORCHRUN = b"""E1120 14:22:28.000000 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 3)
Traceback (most recent call last):
  File "/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_14:22:28
  host      : algo-2
  rank      : 3 (local_rank: 1)
  exitcode  : 3 (pid: 77)
  error_file: <N/A>
============================================================
"""


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (PLAIN, ["ValueError: boom", "rank 3 on algo-2", "Traceback (most recent call last):"]),
        (b"no more data\n", ["rank 3 on algo-2", "no more data"]),
    ],
)
def test_torchrun_s_own_traceback_is_not_the_cause(said: bytes, message: list[str]) -> None:
    stderr = feed(said + TORCHRUN, 100)
    assert torchrun_cause(stderr.tail()) == (3, 3)
    assert explain(Capture(), stderr, lambda rank: f"algo-{rank // 2 + 1}").splitlines()[: len(message)] == message


def test_pieces_of_several_ranks_on_one_line_are_told_apart() -> None:
    """mpirun tags pieces, as unbuffered Python writes them: text and line end apart, ranks in between."""
    data = (
        b"[1,1]<stderr>:Traceback (most recent call last):[1,1]<stderr>:\n"
        b'[1,1]<stderr>:  File "a.py", line 1[1,0]<stderr>:Traceback (most recent call last):[1,1]<stderr>:\n'
        b"[1,1]<stderr>:ValueError: one\n[1,0]<stderr>:KeyError: zero[1,0]<stderr>:\n"
    )
    capture = feed(data, 11)
    assert capture.traceback(1) == 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: one'
    assert capture.traceback(0) == "Traceback (most recent call last):\nKeyError: zero"


@pytest.mark.parametrize("host_of", [None, lambda rank: "algo-2"])
def test_the_marks_of_torch_distributed_are_left_out(host_of: Callable[[int], str] | None) -> None:
    """torch's own exception hook writes [rank3]: before every line; with mpirun its tag stands before that."""
    marked = b"".join(b"[rank3]: " + line for line in PLAIN.partition(b"\n")[2].splitlines(True))
    blamed = b"  Process name: [[1,1],3]\n"
    for data in (marked, tagged(3, marked) + blamed):
        if host_of is None and data is not marked:
            continue
        message = explain(Capture(), feed(data, 40), host_of).splitlines()
        assert message[0] == "ValueError: boom"
        assert message[-1] == "ValueError: boom"
        assert not any("[rank" in line for line in message)


def test_frames_of_the_launcher_are_left_out() -> None:
    text = (
        'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run\n'
        '  File "/x/mpi4py/run.py", line 53, in main\n    run_path()\n'
        '  File "train.py", line 1, in <module>\n    f()\nValueError: x'
    )
    assert shorten(text).splitlines() == [
        "Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "    f()",
        "ValueError: x",
    ]
