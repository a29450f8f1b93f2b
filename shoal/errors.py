"""The one exception a user of `shoal` is meant to see."""


class ShoalError(Exception):
    """Something the user can put right.

    The message is one line: what is wrong, where, which value, what is allowed, what to do. `shoal.cli` prints it on
    stderr without a traceback and exits with `exit_code`. Every other exception is a bug and keeps its traceback.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
