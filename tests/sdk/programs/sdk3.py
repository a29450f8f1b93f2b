"""SageMaker's Python SDK, generation 3: `ModelTrainer(...).train()` with local containers, as a user writes it."""

from __future__ import annotations

from typing import Any

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import MPI, Torchrun
from sagemaker.train.model_trainer import Mode
from serve import serve

LAUNCHERS = {"torchrun": Torchrun, "mpi": MPI}


def train(job: dict[str, Any]) -> None:
    """Run one job; its results are below the folder that it names."""
    launcher = LAUNCHERS[job["launcher"]](**job["options"]) if job["launcher"] else None
    trainer = ModelTrainer(
        training_mode=Mode.LOCAL_CONTAINER,
        training_image=job["image"],
        source_code=SourceCode(**job["source"]),
        compute=Compute(instance_type="local_cpu", instance_count=job["hosts"]),
        distributed=launcher,
        base_job_name=job["name"],
        hyperparameters=job["hyperparameters"],
        environment=job["environment"],
        local_container_root=job["root"],
    )
    data = [InputData(channel_name=name, data_source=folder) for name, folder in job["inputs"].items()]
    trainer.train(input_data_config=data)


if __name__ == "__main__":
    serve(train)
