"""The soak: `python run_soak.py [--operations N] [--seed S]`. See workers/soak.py; the suite runs a short one.

Four ranks on one host, in every way that messages can go there, then two hosts of two. Prints the seed
first, so that a failure can be had again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys

from rank_jobs import INSIDE, run_ranks

# Memory may grow by this much: buffers that the library keeps for the largest operation so far, and fragments. Up to
# 17 MiB were seen, whatever the length of the run (one seed, two hosts of two: 11.9 MiB after 25,000 operations, 17.1
# after 100,000, 11.1 after 200,000). A leak of one tensor in ten operations exceeds it.
SLACK_KIB = 32 << 10

# How much of a message goes at a time (SMDDP_SHM_CHUNK_BYTES): what the machine's caches say, as much as a large one of
# the soak, or little, so that most take several rounds.
CHUNKS = (0, 200_000, 50_000, 16_384)

# Hosts, and how messages go inside a host.
LAYOUTS = (("aaaa", "slots"), ("aaaa", "mailboxes"), ("aaaa", "direct"), ("aabb", "mailboxes"))


def soak(hosts: str, operations: int, seed: int, limit: float, inside: str) -> dict[str, object]:
    """One soak; its figures. `hosts` as for run_ranks, `inside` is one of INSIDE.

    Raises:
        AssertionError: a result was wrong, a rank failed or hung, or something was left over.
    """
    chunk = random.Random(f"{seed} {hosts} {inside}").choice(CHUNKS)
    env = {**INSIDE[inside], "SMDDP_SHM_CHUNK_BYTES": str(chunk)}
    results = run_ranks("soak", len(hosts), str(seed), str(operations), hosts=hosts, env=env, limit=limit)
    for result in results:
        before, after = result.report["before"], result.report["after"]
        where = f"seed {seed}, hosts {hosts}, chunks of {chunk}, rank {result.rank}: {before} -> {after}"
        for name in ("threads", "files", "shared_mappings"):
            assert after[name] <= before[name], f"{name} grew: {where}"
        assert after["kib"] - before["kib"] < SLACK_KIB, f"memory grew: {where}"
    first = results[0].report
    return {
        "hosts": hosts,
        "inside": inside,
        "chunk_bytes": chunk,
        "operations": operations,
        "seed": seed,
        "groups": first["groups"],
        "seconds": first["seconds"],
        "grew_kib": max(one.report["after"]["kib"] - one.report["before"]["kib"] for one in results),
        "threads": first["after"]["threads"],
        "files": first["after"]["files"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr)
    figures = []
    for hosts, inside in LAYOUTS:
        figures.append(soak(hosts, arguments.operations, seed, limit=3600, inside=inside))
        print(figures[-1], file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
