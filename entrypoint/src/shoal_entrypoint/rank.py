"""Open MPI starts every rank through this script (its "fork agent"), on every host: it completes the environment of the
rank and becomes the rank's program.

It adds the variables that torch.distributed reads; it takes back values of the host it runs on, which `mpirun -x` has
overwritten with the first host's; and it brings back names that the shells on the way have dropped
(SM_CHANNEL_MY-DATA). Run by path with `python -I -S`: a few milliseconds, no imports beyond the interpreter's own.
"""

from __future__ import annotations

import os
import sys

_RANK_NAMES = (
    (b"RANK", b"OMPI_COMM_WORLD_RANK"),
    (b"WORLD_SIZE", b"OMPI_COMM_WORLD_SIZE"),
    (b"LOCAL_RANK", b"OMPI_COMM_WORLD_LOCAL_RANK"),
    (b"LOCAL_WORLD_SIZE", b"OMPI_COMM_WORLD_LOCAL_SIZE"),
)


def main() -> None:
    """Complete the environment and become the program; the process that Open MPI watches stays the same."""
    environment = dict(os.environb)
    with open(os.environ["SHOAL_RANK_ENV"], "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name:
                environment[name] = value
    for name, source in _RANK_NAMES:
        environment[name] = environment[source]
    try:
        os.execvpe(sys.argv[1], sys.argv[1:], environment)
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: cannot be started: {error}")


if __name__ == "__main__":
    main()
