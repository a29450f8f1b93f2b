"""Reports the cores on which this rank's threads may run, by the name of the thread."""

from __future__ import annotations

import json
from pathlib import Path

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist


def cores(task: Path) -> str:
    lines = (task / "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


dist.init_process_group("smddp")
tensor = torch.ones(1000)
work = dist.all_reduce(tensor, async_op=True)
assert work is not None
work.wait()
tasks = {task: (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
progress = [cores(task) for task, name in tasks.items() if name == "smddp-progress"]
assert progress
print(json.dumps({"progress": progress, "main": cores(Path("/proc/self"))}))
dist.destroy_process_group()
