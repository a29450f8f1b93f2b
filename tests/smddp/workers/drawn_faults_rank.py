"""One rank of a job in which one fails: `drawn_faults_rank.py SEED FOLDER`.

All ranks draw the same calls from the seed, and who fails, how and when (../drawn_faults.py). Whoever fails writes the
time into FOLDER/fault; every other rank reports its error, and when it came.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from smdistributed.dataparallel.torch import torch_smddp

sys.path.insert(0, str(Path(__file__).parent.parent))
from drawn_faults import TIMEOUT, Call, draw_call, plan

MOST_PENDING = 6


class ScriptError(Exception):
    """Of the user's script."""


def start(call: Call, ranks: list[int], group: Any) -> list[Any]:
    """Makes the call; works to wait for."""
    me, size = ranks.index(dist.get_rank()), len(ranks)
    root = ranks[call.root]
    mine, whole = torch.ones(call.count), torch.ones(call.count * size)
    if call.name == "send":  # each to the next
        following, last = ranks[(me + 1) % size], ranks[me - 1]
        return [dist.isend(mine, following, group), dist.irecv(torch.empty(call.count), last, group)]
    parts = list(whole.chunk(size)) if ranks[me] == root else None
    operations: dict[str, tuple[Any, ...]] = {
        "all_reduce": (dist.all_reduce, mine),
        "broadcast": (dist.broadcast, mine, root),
        "all_gather": (dist.all_gather_into_tensor, whole, mine),
        "reduce_scatter": (dist.reduce_scatter_tensor, mine, whole),
        "barrier": (dist.barrier,),
        "reduce": (dist.reduce, mine, root),
        "gather": (dist.gather, mine, parts, root),
        "scatter": (dist.scatter, mine, parts, root),
        "all_to_all": (dist.all_to_all_single, torch.empty_like(whole), whole),
    }
    operation, *arguments = operations[call.name]
    work = operation(*arguments, group=group, async_op=call.asynchronous)
    return [] if work is None else [work]


class Rank:
    """Makes calls until one fails."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rank = dist.get_rank()
        self.plan = plan(seed)
        self.chance = random.Random(seed)
        self.mark = folder / "fault"
        self.left = self.plan.at
        self.groups: list[tuple[list[int], Any]] = [(list(range(dist.get_world_size())), dist.group.WORLD)]
        for ranks in self.plan.groups:
            self.groups.append((ranks, dist.new_group(ranks, timeout=timedelta(seconds=TIMEOUT))))

    def run(self) -> None:
        pending: list[Any] = []
        while True:
            call = draw_call(self.chance, [len(ranks) for ranks, _ in self.groups])
            ranks, group = self.groups[call.group]
            if self.rank in ranks:
                self.left -= 1
                if self.rank == self.plan.victim and self.left == 0:
                    self.fail(call)
                pending += start(call, ranks, group)
            if call.settle or len(pending) > MOST_PENDING:
                for work in pending:
                    work.wait()
                pending.clear()

    def fail(self, call: Call) -> None:
        """Ends this rank, or changes what it is about to call."""
        fault = self.plan.fault
        if fault == "kill_inside":
            threading.Timer(self.plan.delay, self.end, (signal.SIGKILL,)).start()
            return
        if fault in ("kill", "stop"):
            self.end(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        self.mark.write_text(str(time.monotonic()))
        if fault == "exit":
            os._exit(3)
        if fault == "raise":
            raise ScriptError("the loss is no number")
        if fault == "abort":
            ours: Any = torch_smddp
            ours.abort(dist.group.WORLD)
        # A message has no other operation: whoever waits for it waits.
        elif (fault == "shape" and call.name != "barrier") or call.name == "send":
            call.count += 1
        else:
            call.name = "all_reduce" if call.name != "all_reduce" else "barrier"

    def end(self, number: signal.Signals) -> None:
        self.mark.write_text(str(time.monotonic()))
        os.kill(os.getpid(), number)


def main() -> None:
    seed, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("smddp", timeout=timedelta(seconds=TIMEOUT))
    rank = Rank(seed, folder)
    try:
        rank.run()
    except ScriptError:
        raise
    except Exception as error:
        report = {"kind": type(error).__name__, "message": str(error), "time": time.monotonic()}
        print(json.dumps(report), flush=True)
    if seed % 2:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
