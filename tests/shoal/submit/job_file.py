"""A folder with a job file in it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUEST: dict[str, Any] = {
    "TrainingJobName": "digits",
    "RoleArn": "arn:aws:iam::000000000000:role/local",
    "AlgorithmSpecification": {"TrainingImage": "registry.example/train:1", "TrainingInputMode": "File"},
    "HyperParameters": {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "file://source",
        "sagemaker_torch_distributed_enabled": "true",
        "lr": "0.1",
    },
    "InputDataConfig": [
        {
            "ChannelName": "train",
            "ContentType": "text/csv",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data"}},
        }
    ],
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/runs"},
    "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    "Environment": {"PRICE": "$(HOME) $5", "EMPTY": ""},
}


@dataclass
class JobFile:
    """A folder with a job file and its script."""

    path: Path
    request: dict[str, Any]

    def write(self) -> str:
        """Write the job file; return its path."""
        file = self.path / "job.json"
        file.write_text(json.dumps(self.request))
        return str(file)
