"""What a seed says of a job in which one rank fails: where the ranks are, who fails, how and when."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rank_jobs import INSIDE

# SIGKILL between calls, and at some time in them; an end without a word; an exception that ends the script.
DEATHS = ("kill", "kill_inside", "exit", "raise")
# Another shape than the others', another operation.
DISAGREEMENTS = ("shape", "other")
FAULTS = (*DEATHS, *DISAGREEMENTS, "stop", "abort")
# Of every group, in seconds.
TIMEOUT = 4

_LAYOUTS = ("aa", "aaa", "aaaa", "ab", "abc", "aabb", "abb", "abcd")
# So that messages of a few KiB take several rounds already.
_SMALL = {"SMDDP_SHM_CHUNK_BYTES": "8192", "SMDDP_NET_BLOCK_BYTES": "8192", "SMDDP_NET_PIECE_BYTES": "4096"}


@dataclass
class Plan:
    """`hosts` as for run_ranks; `groups`: ranks of each beside the job's own."""

    hosts: str
    inside: str
    env: dict[str, str]
    groups: list[list[int]]
    fault: str
    victim: int
    at: int  # call
    delay: float  # seconds into it, for "kill_inside"


def plan(seed: int) -> Plan:
    chance = random.Random(seed)
    hosts, inside = chance.choice(_LAYOUTS), chance.choice(list(INSIDE))
    size = len(hosts)
    return Plan(
        hosts,
        inside,
        INSIDE[inside] | (_SMALL if chance.random() < 0.5 else {}),
        [sorted(chance.sample(range(size), chance.randint(2, size))) for _ in range(chance.randint(0, 2))],
        chance.choice(FAULTS),
        chance.randrange(size),
        int(2 ** chance.uniform(1, 9)),
        chance.random() * 0.01,
    )


CALLS = (
    *("all_reduce",) * 4,
    *("broadcast", "all_gather", "reduce_scatter", "barrier"),
    *("reduce", "gather", "scatter", "all_to_all", "send"),
)


@dataclass
class Call:
    """`group` is a number: 0 for the job's own; `root` a position in it."""

    name: str
    group: int
    root: int
    count: int
    asynchronous: bool
    settle: bool  # whether everything so far is waited for afterwards


def draw_call(chance: random.Random, sizes: list[int]) -> Call:
    """`sizes`: ranks of each group."""
    group = chance.choice([0, *range(len(sizes))])
    return Call(
        chance.choice(CALLS),
        group,
        chance.randrange(sizes[group]),
        int(2 ** chance.uniform(0, 19 if chance.random() < 0.05 else 11)),
        chance.random() < 0.3,
        chance.random() < 0.5,
    )
