"""One job by local mode of SageMaker's Python SDK, generation 2: what a user's own program would be.

Run by an interpreter that has the SDK, with the settings as JSON for its only argument. Prints the seconds of `fit`.
"""

from __future__ import annotations

import json
import sys
import time

from sagemaker.local import LocalSession
from sagemaker.pytorch import PyTorch


def main() -> None:
    """Fit and say how long that took."""
    settings = json.loads(sys.argv[1])
    session = LocalSession()
    session.config = {"local": {"local_code": True, "region_name": "us-east-1", "container_root": settings.pop("root")}}
    role = "arn:aws:iam::000000000000:role/local"
    estimator = PyTorch(role=role, instance_type="local", sagemaker_session=session, **settings)
    began = time.perf_counter()
    estimator.fit()
    print(json.dumps({"fit": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
