"""Where the command begins: `shoal`, or `python -m shoal`."""

import sys

INTERRUPTED = 130  # as a shell says of a command that Ctrl-C ended


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback from the first moment on, imports included."""
    try:
        from shoal.imports import without_collecting

        with without_collecting():
            from shoal.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
