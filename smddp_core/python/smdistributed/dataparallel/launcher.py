"""``smddprun CMD ARGS...``: run a command as a rank, with the rank environment that torch.distributed expects.

It stands between a launcher and the script (``mpirun -np 8 smddprun python train.py``).
It must start fast: no torch here.
"""

import os
import sys

from smdistributed.dataparallel.rank_environment import rank_environment

_USAGE = "usage: smddprun COMMAND [ARGUMENT...]\nRuns COMMAND with RANK, WORLD_SIZE, ... set from the launcher's."


def main() -> None:
    """Replaces this process with the command. Exit codes as a shell's: 127 not found, 126 not executable, 2 usage."""
    command = sys.argv[1:]
    if not command:
        sys.stderr.write(_USAGE + "\n")
        sys.exit(2)
    if command[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE + "\n")
        sys.exit(0)
    os.environ.update(rank_environment(os.environ))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"smddprun: {command[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
