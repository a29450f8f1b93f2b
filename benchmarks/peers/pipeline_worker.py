"""A rank of benchmarks/pipeline.py.

    pipeline_worker.py PART SIDE RANKS MICROBATCHES [SHAPE]

PART is sleep, compute, memory or hop; SIDE smp, gpipe, 1f1b or single; SHAPE (of smp): chain, tail or plain.
Commands (see ``harness/job.py``): ``steps COUNT`` -> the losses of that many steps, then their seconds; ``hops COUNT``
-> seconds of a hop forward and backward; ``peak`` -> the most bytes of memory so far, above what the imports left.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from channel import serve
from pipeline_models import build

_NO_LOSS = -1.0


def memory(name: str) -> int:
    """Bytes of a field of this process's status: VmRSS, or VmHWM, its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def side(part: str, name: str, ranks: int, microbatches: int, shape: str) -> Any:
    """What runs the model on this rank."""
    optimizer = torch.optim.AdamW if part == "memory" else torch.optim.SGD
    work = build(part, ranks, microbatches)
    if name == "single":
        from pipeline_torch import Single

        return Single(work, microbatches, optimizer)
    if name == "smp":
        from pipeline_smp import Smp

        return Smp(work, shape, shape != "plain", optimizer)
    from pipeline_torch import Pipelined

    return Pipelined(name, work, microbatches)


def timed_steps(runner: Any, count: int) -> str:
    losses, seconds = [], []
    for _ in range(count):
        runner.meet()
        start = time.perf_counter()
        loss = runner.step()
        seconds.append(time.perf_counter() - start)
        losses.append(_NO_LOSS if loss is None else loss)
    return "ok " + " ".join(f"{value!r}" for value in losses + seconds)


def main() -> None:
    part, name, ranks, microbatches = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    shape = sys.argv[5] if len(sys.argv) > 5 else "chain"
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    importlib.import_module("pipeline_smp" if name == "smp" else "pipeline_torch")
    base = memory("VmRSS")
    if part == "hop":
        from pipeline_smp import Hops

        hops = Hops()
        serve(rank, lambda _verb, words: "ok {!r} {!r}".format(*hops.measure(int(words[0]))))
        return
    runner = side(part, name, ranks, microbatches, shape)

    def handle(verb: str, words: list[str]) -> str:
        if verb == "peak":
            return f"ok {memory('VmHWM') - base}"
        return timed_steps(runner, int(words[0]))

    serve(rank, handle)
    runner.close()


if __name__ == "__main__":
    main()
