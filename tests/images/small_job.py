"""A small training job in a container of the image."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from containers import Done, Run

# Two ranks, one host, over smddp; what each knows goes into the model. An exit code may be asked for.
SCRIPT = """\
import argparse, os, sys, torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
parser = argparse.ArgumentParser()
parser.add_argument("--exit_code", type=int, default=0)
parser.add_argument("--module")
options = parser.parse_args()
if options.module:
    print(__import__(options.module).__file__)
sys.exit(options.exit_code) if options.exit_code else None
dist.init_process_group("smddp")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
if dist.get_rank() == 0:
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "total"), "w") as file:
        file.write(str(total.item()))
dist.destroy_process_group()
"""
SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true"}


def train(
    run: Run,
    ml: Path,
    hyperparameters: dict[str, str] | None = None,
    command: list[str] | None = None,
    script: str = SCRIPT,
    launcher: Mapping[str, str] = SMDDP,
    **options: Any,
) -> Done:
    """Run `train` on a job of two ranks, its /opt/ml in the new folder `ml`; `options` are the container's."""
    for folder in ("input/config", "input/data", "code", "model", "output/data"):
        (ml / folder).mkdir(parents=True)
    (ml / "code" / "train.py").write_text(script)
    launch = {"sagemaker_program": "train.py", "sagemaker_mpi_num_of_processes_per_host": "2", **launcher}
    job = {**launch, **(hyperparameters or {})}
    (ml / "input" / "config" / "hyperparameters.json").write_text(json.dumps(job))
    hosts = {"current_host": "algo-1", "hosts": ["algo-1"]}
    (ml / "input" / "config" / "resourceconfig.json").write_text(json.dumps(hosts))
    for path in [ml, *ml.rglob("*")]:  # whoever the container runs as may write
        path.chmod(0o777 if path.is_dir() else 0o666)
    volumes = {str(ml): {"bind": "/opt/ml", "mode": "rw"}}
    return run(command or ["train"], volumes=volumes, **options)
