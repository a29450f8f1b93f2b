"""Every error class of the library, and nothing else: the training toolkit reads this module's names.

A message is one sentence: what, which value, what is allowed, what to do.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "NotInitializedError",
    "PeerLostError",
    "SMPConfigError",
    "SMPError",
    "SMPUnsupportedError",
    "SMPValueError",
    "StepError",
    "StepTimeoutError",
]


class SMPError(RuntimeError):
    """Any error that the library raises itself."""


class SMPConfigError(SMPError, ValueError):
    """A configuration, or a launch, that cannot be run."""


class SMPValueError(SMPError, ValueError):
    """An argument outside what a function allows."""


class SMPUnsupportedError(SMPError):
    """Something that the library refuses, with what to use instead."""


class NotInitializedError(SMPError):
    """A call that needs `smp.init()` before it."""


class CheckpointError(SMPError, OSError):
    """A file of a checkpoint that cannot be written or read, or that is missing."""


class PeerLostError(SMPError):
    """Another rank ended, or can no longer be reached, while this one waited for it."""


class StepTimeoutError(SMPError):
    """A step made no progress for longer than the watchdog allows."""


class StepError(SMPError):
    """A task of a step failed, on this rank or on another.

    rank: global rank where it failed. microbatch: index of the micro-batch, or None outside one. module: qualified name
    of the module that ran, '' for the step function. remote_traceback: the traceback as text, as that rank saw it.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        microbatch: int | None = None,
        module: str = "",
        remote_traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.microbatch = microbatch
        self.module = module
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        """The message, then the traceback of the rank where it happened."""
        message = super().__str__()
        return f"{message}\n{self.remote_traceback}" if self.remote_traceback else message
