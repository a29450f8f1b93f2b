"""The failure file: its text, and writing it without ever turning a failure into a success."""

from __future__ import annotations

from pathlib import Path

from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError, Outcome

__all__ = ["command_failure", "own_words", "record", "to_exit_code"]

_SIGKILL_EXIT = 137
# Enough for a deep traceback; the platform shows the first 1024 characters.
_MESSAGE_LIMIT = 16 * 1024


def to_exit_code(returncode: int) -> int:
    """A process's end as a container exit code: signals as shells report them."""
    return 128 - returncode if returncode < 0 else returncode


def command_failure(
    error_class: str, exit_code: int, message: str, argv: list[str], killed_here: bool = False
) -> JobError:
    """A command of the job ended badly: the text that existing tools parse. `killed_here`: SIGKILL may be ours."""
    from shoal_entrypoint.masking import mask_command  # only failed jobs need it, and its patterns cost milliseconds

    if len(message) > _MESSAGE_LIMIT:
        half = _MESSAGE_LIMIT // 2
        message = message[:half] + "\n[...]\n" + message[-half:]
    lines = [f"{error_class}:", f"ExitCode {exit_code}", f'ErrorMessage "{message}"']
    if exit_code == _SIGKILL_EXIT and not killed_here:
        lines.append('ExtraInfo "OutOfMemory: Process killed by SIGKILL (signal 9)"')
    lines.append(f'Command "{" ".join(mask_command(argv))}"')
    return JobError("\n".join(lines), exit_code)


def own_words(failure: Path) -> str | None:
    """What the user's code wrote into the failure file of this host: the other hosts shall say the same."""
    try:
        with failure.open("rb") as file:
            return file.read(_MESSAGE_LIMIT).decode("utf-8", "backslashreplace") or None
    except OSError:
        return None


def record(outcome: Outcome, failure: Path, success: Path) -> int:
    """Write `success` or `failure` and return the exit code. A failure file that the user's code wrote is kept."""
    if not outcome.failed:
        try:
            success.parent.mkdir(parents=True, exist_ok=True)
            success.touch()
        except OSError as error:
            log(f"{success}: cannot be written: {error}")
        return 0
    text = outcome.failure or f"Failed with exit code {outcome.exit_code}."
    log(f"failed with exit code {outcome.exit_code}; {failure} says why")
    try:
        failure.parent.mkdir(parents=True, exist_ok=True)
        if not failure.exists() or failure.stat().st_size == 0:
            failure.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        log(f"{failure}: cannot be written: {error}. It would say:\n{text}")
    return outcome.exit_code
