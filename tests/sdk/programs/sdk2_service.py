"""SageMaker's Python SDK, generation 2, against an endpoint: a job, one that fails, and attaching to one again."""

from __future__ import annotations

from typing import Any

import sagemaker
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.pytorch import PyTorch
from serve import serve


def fit(job: dict[str, Any]) -> dict[str, Any]:
    """Run the jobs; return what the SDK knows of them."""
    session = sagemaker.Session(default_bucket=job["bucket"])
    train = session.upload_data(job["data"], key_prefix="data")

    def estimator(entry_point: str) -> PyTorch:
        return PyTorch(
            role="arn:aws:iam::000000000000:role/local",
            instance_type="ml.c5.xlarge",
            sagemaker_session=session,
            entry_point=entry_point,
            tags=[{"Key": "team", "Value": "digits"}],
            **job["estimator"],
        )

    failing = estimator("fail.py")
    failing.fit(wait=False)
    good = estimator("train.py")
    good.fit({"train": train}, wait=True, logs=True)
    try:
        failing.latest_training_job.wait(logs=False)
        why = ""
    except UnexpectedStatusException as error:
        why = str(error)
    attached = PyTorch.attach(good.latest_training_job.name, sagemaker_session=session)
    described = good.latest_training_job.describe()
    return {
        "name": described["TrainingJobName"],
        "model_data": good.model_data,
        "metrics": {each["MetricName"]: each["Value"] for each in described["FinalMetricDataList"]},
        "why": why,
        "attached": [attached.model_data, attached.instance_count, attached.tags, attached.hyperparameters()["epochs"]],
    }


if __name__ == "__main__":
    serve(fit)
