"""SageMaker's Python SDK, generation 2: `PyTorch(...).fit(...)` in local mode, as a user writes it."""

from __future__ import annotations

from typing import Any

import boto3
from sagemaker.inputs import TrainingInput
from sagemaker.local import LocalSession
from sagemaker.pytorch import PyTorch
from serve import serve


def fit(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job; return the hyperparameters that it sent and where its model is."""
    session = LocalSession(boto3.Session(), **job["session"])
    session.config = {"local": job["local"]}
    estimator = PyTorch(
        role="arn:aws:iam::000000000000:role/local",
        instance_type="local",
        sagemaker_session=session,
        **job["estimator"],
    )
    inputs = {name: TrainingInput(uri) for name, uri in job["inputs"].items()}
    estimator.fit(inputs or None, job_name=job["name"])
    return {"hyperparameters": estimator.hyperparameters(), "model_data": estimator.model_data}


if __name__ == "__main__":
    serve(fit)
