"""``smddp info`` and ``smddp tune``. The command line only; the work is in the modules beside."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from smdistributed.dataparallel.digits import is_whole_number
from smdistributed.dataparallel.exceptions import SMDDPError
from smdistributed.dataparallel.rank_environment import rank_environment
from smdistributed.dataparallel.tuning import table_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main() -> None:
    """Exit codes: 0 done, 1 failed, 2 wrong usage."""
    try:
        try:
            arguments = _parser().parse_args()
            code = arguments.run(arguments)
        finally:
            _show("")  # argparse's help is still in the buffer
        sys.exit(code)
    except (SMDDPError, ImportError) as error:
        sys.stderr.write(f"smddp: {str(error).replace('smddp: ', '', 1)}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _show(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Else the interpreter would try once more as it ends, and complain in its own words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SMDDPError(f"smddp: standard output: {error.strerror}") from error


class _Version(argparse.Action):
    """Only then is the compiled part loaded."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from smdistributed.dataparallel.compiled import _C

        _show(f"smddp {_C.__version__} (torch {_C.torch_version})\n")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="smddp", description="The data-parallel back end for torch.distributed.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version, and the torch it was built for")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="show versions, cores, shared memory, interfaces and settings")
    info.add_argument("--json", action="store_true", help="as one JSON object")
    info.set_defaults(run=_info)
    tune = commands.add_parser(
        "tune",
        help="measure the settings on these ranks and write the best to a table",
        description="Start it as the job is started (mpirun ... smddp tune, torchrun --no-python ... smddp tune), or "
        "give --ranks for this host alone. Groups of as many hosts and ranks take their settings from the table.",
    )
    tune.add_argument("--ranks", type=_count, help="start this many ranks here instead of using a launcher's")
    tune.add_argument(
        "--output", type=Path, help="the table (default: SMDDP_TUNE_FILE, else ~/.config/smddp/tuning.json)"
    )
    tune.add_argument("--largest", type=_bytes, default=64 << 20, help="largest message to measure (default: 64M)")
    tune.add_argument("--rounds", type=_count, default=3, help="times to measure each value (default: 3)")
    tune.add_argument("--store", help=argparse.SUPPRESS)  # where ranks started by --ranks meet
    tune.set_defaults(run=_tune)
    return parser


def _count(text: str) -> int:
    if not is_whole_number(text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least 1")
    return int(text)


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _SIZES else (text, "")
    if not is_whole_number(number) or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a number of bytes, such as 65536, 64K or 16M")
    return int(number) * _SIZES.get(unit, 1)


def _info(arguments: argparse.Namespace) -> int:
    from smdistributed.dataparallel.command import info

    _show(info.as_json() if arguments.json else info.as_text())
    return 0


def _tune(arguments: argparse.Namespace) -> int:
    os.environ.update(rank_environment(os.environ))
    output = arguments.output or table_path(os.environ)[0]
    if output is None:
        return _wrong_usage("SMDDP_TUNE_FILE=none names no table to write: give --output FILE")
    if arguments.ranks:
        from smdistributed.dataparallel.command import local_ranks

        values = {"--output": output, "--largest": arguments.largest, "--rounds": arguments.rounds}
        options = [str(word) for option in values.items() for word in option]
        return local_ranks.run(arguments.ranks, ["tune", *options])
    problem = _rank_problem(os.environ, ("RANK", "WORLD_SIZE") if arguments.store else _RANK_VARIABLES)
    if problem:
        return _wrong_usage(problem)
    from smdistributed.dataparallel.command import tune

    return tune.run(output, arguments.largest, arguments.rounds, arguments.store)


def _wrong_usage(problem: str) -> int:
    sys.stderr.write(f"smddp tune: {problem}\n")
    return 2


def _rank_problem(environ: Mapping[str, str], names: Sequence[str]) -> str:
    """What keeps the ranks from meeting, as far as this rank's variables say; empty if nothing does."""
    if not environ.get("RANK"):
        return "no rank environment: start it by mpirun or torchrun, or give --ranks N"
    missing = [name for name in names if not environ.get(name)]
    if missing:
        return f"RANK is set and {', '.join(missing)} not: start it by mpirun or torchrun, or give --ranks N"
    for name in names:
        if name != "MASTER_ADDR" and not is_whole_number(environ[name]):
            return f"{name}={environ[name]}: expected a whole number"
    if int(environ["RANK"]) >= int(environ["WORLD_SIZE"]):
        return f"RANK={environ['RANK']}: expected less than WORLD_SIZE={environ['WORLD_SIZE']}"
    return ""


if __name__ == "__main__":
    main()
