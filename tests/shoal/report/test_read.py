"""The reader: any number of hosts, lines that nobody can read, clocks that jump, hosts that stop."""

import json
import random
from pathlib import Path

import pytest
from report_samples import BEGAN, event, host, ranks, write_run

from shoal.errors import ShoalError
from shoal.report import lines, summary
from shoal.report.read import read


def files(run: Path) -> list[Path]:
    return sorted((run / "profiler-output" / "system").rglob("*.json"))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    events = [one for n in (1, 2, 10) for one in host(f"algo-{n}", points=300)]
    seen = read(write_run(tmp_path, events, ranks(4, 50), {"TrainingJobName": "first"}))
    assert seen.nodes == ["algo-1", "algo-2", "algo-10"]
    assert seen.metrics.height == len(events)
    assert seen.steps.height == 200
    assert seen.job["TrainingJobName"] == "first"
    assert (seen.faults.files, seen.faults.bad_lines) == (13, 0)  # three hosts in three minutes, four ranks
    assert seen.metrics["Snapshot"].n_unique() == 300
    assert summary.remarks(seen.faults) == []


def test_snapshots_are_what_was_taken_within_20_ms(tmp_path: Path) -> None:
    times = [0.0, 0.012, 0.02, 0.035, 0.5]
    events = [event("cpu", "cpu0", "CPUUtilization", 1.0, "algo-1", 1e9 + time) for time in times]
    assert read(write_run(tmp_path, events)).metrics["Snapshot"].to_list() == [0, 0, 0, 1, 2]


def counted(calls: int, **more: float) -> dict[str, dict[str, float]]:
    return {"all_reduce": {"Calls": calls, "Bytes": calls * 8, **more}}


@pytest.mark.parametrize("at_once", [1, 1 << 30])
@pytest.mark.parametrize("end", [b"", b'{"NodeId":"algo-1","Ra'])
def test_collectives_are_summed_over_all_files_of_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, end: bytes
) -> None:
    """Read together or one by one, with a line that its rank could not end or without."""
    monkeypatch.setattr(lines, "_AT_ONCE", at_once)
    steps = [{**one, "Collectives": counted(2, Seconds=0.5)} for one in ranks(2, 30)]
    run = write_run(tmp_path, steps=steps)
    folder = run / "profiler-output" / "steps"
    (folder / "algo-1-0.again.jsonl").write_bytes((folder / "algo-1-0.jsonl").read_bytes() + end)
    (folder / "algo-1-2.jsonl").write_text(json.dumps({**steps[0], "Rank": 2, "Collectives": counted(3)}))
    found = [(row["Rank"], row["Calls"], row["Bytes"], row["Seconds"]) for row in read(run).collectives.to_dicts()]
    assert found == [(0, 120, 960, 30), (1, 60, 480, 15), (2, 3, 24, None)]


def test_of_files_read_together_the_bad_one_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, events := list(host(points=300)))
    good, bad, *_ = files(run)
    bad.write_bytes(bad.read_bytes() + b"{\n\n")
    seen = read(run)
    assert seen.metrics.height == len(events)
    assert seen.faults.bad_files == [f"{bad.name}: 2 of {bad.read_bytes().count(bytes([10]))} lines"]
    assert good.name not in str(seen.faults)


@pytest.mark.parametrize(
    "line",
    [
        b'{"Type":"cpu","Name":"cp',
        b"\xff\xfe\x00garbage",
        b"[1, 2]",
        b'"text"',
        b'{"Type":"cpu","Name":"cpu0","Dimension":"","Value":"5","NodeId":"algo-1","Timestamp":1700000000}',
        b'{"Type":"cpu","Name":"cpu0","Dimension":"","Value":NaN,"NodeId":"algo-1","Timestamp":1700000000}',
        b'{"Type":"cpu","Name":"cpu0","Dimension":"","Value":true,"NodeId":"algo-1","Timestamp":1700000000}',
        b'{"Type":"cpu","Name":"cpu0","Dimension":"","Value":5,"Timestamp":1700000000}',
        b'{"Type":"cpu","Name":"cpu0","Dimension":"","Value":5,"NodeId":"algo-1","Timestamp":12}',
        b"[" * 20000,
        b"1" * 5000,
    ],
)
def test_a_bad_line_costs_that_line(tmp_path: Path, line: bytes) -> None:
    run = write_run(tmp_path, events := list(host(points=40)))
    first = files(run)[0]
    lines = first.read_bytes().splitlines()
    first.write_bytes(b"\n".join([*lines[:7], line, *lines[7:]]) + b"\n")
    seen = read(run)
    assert seen.metrics.height == len(events)
    assert seen.faults.bad_lines == 1
    told = f"1 of {len(events) + 1} lines could not be read and were passed over"
    assert summary.remarks(seen.faults) == [f"{told} ({first.name}: 1 of {len(lines) + 1} lines)"]


def test_a_file_cut_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    run = write_run(tmp_path, host(points=20))
    path, whole = files(run)[0], files(run)[0].read_bytes()
    for cut in random.Random(3).sample(range(len(whole)), 40):
        path.write_bytes(whole[:cut])
        seen = read(run)
        ends = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")
        assert seen.metrics.height == ends
        assert seen.faults.bad_lines <= 1


def test_bytes_changed_at_random_never_stop_it(tmp_path: Path) -> None:
    run, dice = write_run(tmp_path, host(points=20), ranks(2, 20)), random.Random(5)
    paths = [*files(run), *(run / "profiler-output" / "steps").iterdir(), run / "job.json"]
    for _ in range(30):
        for path in paths:
            content = bytearray(path.read_bytes() if path.exists() else b"{}")
            for _ in range(3):
                content[dice.randrange(len(content))] = dice.randrange(256)
            path.write_bytes(content)
        seen = read(run)
        assert seen.faults.lines >= seen.metrics.height + seen.steps.height


def test_clock_jumps_gaps_and_early_ends_are_told(tmp_path: Path) -> None:
    whole = list(host("algo-1", points=400))
    half = list(host("algo-2", points=150))
    jumps = [*host("algo-3", points=200), *host("algo-3", points=180, began=BEGAN + 20)]
    pause = [*host("algo-4", points=100), *host("algo-4", points=100, began=BEGAN + 150)]
    run = write_run(tmp_path, [*whole, *half, *pause])
    path = run / "profiler-output" / "system" / "incremental" / "1" / "1700000000.algo-3.json"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(one) + "\n" for one in jumps))
    seen = read(run)
    assert seen.faults.clock_jumps == {"algo-3": 1}
    assert seen.faults.stopped_early.keys() == {"algo-2", "algo-3"}
    assert seen.faults.gaps == {"algo-4": pytest.approx(100.5)}
    remarks = "\n".join(summary.remarks(seen.faults))
    assert "algo-2 wrote its last sample 2 min 5 s before the others" in remarks
    assert "the clock of algo-3 went back 1 times" in remarks
    assert "algo-4 wrote nothing for 1 min 40 s in between" in remarks


def test_an_empty_run_is_read(tmp_path: Path) -> None:
    (tmp_path / "profiler-output" / "system").mkdir(parents=True)
    (tmp_path / "job.json").write_text("[]")
    seen = read(tmp_path)
    assert (seen.nodes, seen.metrics.height, seen.steps.height, seen.job) == ([], 0, 0, {})
    assert (seen.began, seen.ended) == (0.0, 0.0)


def test_logs_are_searched_for_what_torch_says_of_shared_memory(tmp_path: Path) -> None:
    write_run(tmp_path, host(points=2))
    text = "RuntimeError: unable to write to file </torch_12_34>: No space left on device (28)"
    (tmp_path / "logs" / "algo-2.log").write_text(f"fine\n[algo-2:1] {text}\n")
    assert read(tmp_path).log_marks == {"SmallSharedMemory": [f"algo-2: [algo-2:1] {text}"]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"Traced": true, "ModuleListsInSequence": [{"Name": "b", "Modules": 6, "Ranks": [0, 1]}]}', 1),
        ('{"Traced": true, "ModuleListsInSequence": [{"Name": "b"}]}', 0),
        ('{"Traced": true, "ModuleListsInSequence": 5}', 0),
        ("[" * 100_000, 0),
        ('{"Traced": true', 0),
    ],
)
def test_what_smp_tells_of_a_placement(tmp_path: Path, text: str, found: int) -> None:
    run = write_run(tmp_path, host(points=2))
    (run / "profiler-output" / "smp").mkdir()
    (run / "profiler-output" / "smp" / "placement.json").write_text(text)
    assert len(read(run).placements) == found


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="nothing was measured"):
        read(tmp_path)
    with pytest.raises(ShoalError, match="no such folder"):
        read(tmp_path / "none")
