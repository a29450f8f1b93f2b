"""Errors of collective operations: what the compiled library raises, by cause.

After any of them but ``SMDDPUsageError`` the process group is dead: every later call raises the first cause again.
Inside ``backward()`` torch itself turns them into a plain ``RuntimeError`` with the same message.
"""


class SMDDPError(RuntimeError):
    """Base class; itself raised when the operating system refuses something (memory, sockets)."""


class SMDDPTimeoutError(SMDDPError):
    """A rank did not arrive in time. The message names the operation and the missing ranks."""


class SMDDPPeerError(SMDDPError):
    """A rank's process ended, or its connection broke. The message names the rank."""


class SMDDPMismatchError(SMDDPError):
    """Ranks called different operations, or the same one with another type, size, source or reduction."""


class SMDDPAbortedError(SMDDPError):
    """The process group was aborted, or a rank left it while others were in an operation."""


class SMDDPUsageError(SMDDPError, ValueError):
    """The call cannot be carried out: a wrong setting, a wrong rank, use in a forked child."""
