"""Errors of the library under the name that the training toolkit reads them by.

The toolkit takes every class that it finds in this module for an error class to look for in a job's log.
"""

from __future__ import annotations

from smdistributed.modelparallel.torch.exceptions import (
    NotInitializedError,
    PeerLostError,
    SMPConfigError,
    SMPError,
    SMPUnsupportedError,
    SMPValueError,
    StepError,
    StepTimeoutError,
)

__all__ = [
    "NotInitializedError",
    "PeerLostError",
    "SMPConfigError",
    "SMPError",
    "SMPUnsupportedError",
    "SMPValueError",
    "StepError",
    "StepTimeoutError",
]
