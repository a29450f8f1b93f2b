"""Jobs in which one rank fails, drawn at random: `python run_faults.py [--jobs N] [--seed FIRST]`.

Every other rank must soon raise an error of smddp's that says who failed, and nothing may stay behind. Prints every
job that was not so, with its seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from drawn_faults import DEATHS, DISAGREEMENTS, TIMEOUT, Plan, plan
from rank_jobs import Rank, run_ranks

# Seconds after a rank died; of a silent one, after the group's timeout.
SOON = 5
LIMIT = 60


def problems_of(seed: int) -> list[str]:
    """What was wrong with this seed's job; nothing, if all is well."""
    drawn = plan(seed)
    segments = set(Path("/dev/shm").glob("smddp*"))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        ranks = run_ranks(
            "drawn_faults_rank",
            len(drawn.hosts),
            str(seed),
            folder,
            hosts=drawn.hosts,
            env=drawn.env,
            may_fail=[drawn.victim],
            stopped=[drawn.victim] if drawn.fault == "stop" else (),
            limit=LIMIT,
        )
        failed_at = float((Path(folder) / "fault").read_text())
    problems = [problem for rank in ranks for problem in _problems_of_rank(rank, drawn, failed_at)]
    left = set(Path("/dev/shm").glob("smddp*")) - segments
    if left:
        # Another job's has a name until its ranks have met.
        time.sleep(2)
        left &= set(Path("/dev/shm").glob("smddp*"))
    return problems + ([f"left in shared memory: {left}"] if left else [])


def _problems_of_rank(rank: Rank, drawn: Plan, failed_at: float) -> Iterator[str]:
    if rank.rank == drawn.victim and drawn.fault in (*DEATHS, "stop"):
        return
    took = rank.report["time"] - failed_at
    if took > SOON + (TIMEOUT if drawn.fault == "stop" else 0):
        yield f"rank {rank.rank} raised after {took:.1f} s: {rank.report}"
    if not rank.report["kind"].startswith("SMDDP"):
        yield f"rank {rank.rank} raised another library's error: {rank.report}"
    expected = f"rank {drawn.victim}"
    if drawn.fault in DISAGREEMENTS:
        # A rank that is not in the group where others disagree sees them leave, and why.
        expected = "ranks called different operations"
    elif drawn.fault == "stop" and drawn.groups:
        # It may wait for one that waits in another group.
        expected = "Timed out"
    if expected not in rank.report["message"]:
        yield f"rank {rank.rank} does not say '{expected}': {rank.report}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    first = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    wrong = []
    for seed in range(first, first + arguments.jobs):
        try:
            problems = problems_of(seed)
        except AssertionError as error:
            problems = [str(error)]
        if problems:
            wrong.append(seed)
            print(f"seed {seed}: {plan(seed)}", *problems, sep="\n", file=sys.stderr, flush=True)
    print(json.dumps({"jobs": arguments.jobs, "first_seed": first, "wrong": wrong}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
