"""What users of these tests bring: scripts that write into the model who they are and what they found; a package."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

Source = Callable[..., Path]

# Without torch: what reaches a script that is started once on each host.
PLAIN = """\
import json, os, pathlib, sys, time
me = os.environ["SM_CURRENT_HOST"]
number = int(me.split("-")[1])
time.sleep({sleep})
{then}
pathlib.Path(os.environ["SM_MODEL_DIR"], f"host-{{number}}").write_text(json.dumps({{
    "argv": sys.argv[1:], "hosts": os.environ["SM_HOSTS"],
    "shm_mb": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize >> 20,
    "greeting": os.environ.get("GREETING"), "job": os.environ["TRAINING_JOB_NAME"],
    "data": sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])) if "SM_CHANNEL_TRAIN" in os.environ else None,
}}))
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"seen-by-{{number}}").write_text("data of a host")
"""

# A native DDP script, as it is for any launcher that sets the usual variables.
RANKS = """\
import argparse, json, os, pathlib
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
{first}
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
options = parser.parse_args()
dist.init_process_group("{backend}")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 4), float(rank + step))).sum().backward()
    optimizer.step()
weights = model.module.weight.tolist()
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, weights)
result = {{"host": os.environ["SM_CURRENT_HOST"].split("-")[1], "world": dist.get_world_size(), "lr": options.lr,
          "local_rank": os.environ["LOCAL_RANK"], "same": all(one == weights for one in everyone),
          "extra": os.environ.get("EXTRA")}}
pathlib.Path(os.environ["SM_MODEL_DIR"], f"rank-{{rank}}").write_text(json.dumps(result))
dist.barrier()
dist.destroy_process_group()
"""

WHEEL = "greeting-1.0-py3-none-any.whl"


def wheel() -> bytes:
    """A package `greeting` that no index has."""
    content = {
        "greeting.py": "WORD = 'from a wheel'\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content["greeting-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in content)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return file.getvalue()
