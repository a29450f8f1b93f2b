"""The demo, stage by stage: build the image, write the data, train on two hosts, check the model on this machine.

Arguments are stages already done, as NAME=SECONDS. Every stage is a command a user can run alone; it is shown.
"""

import datetime as dt
import subprocess
import sys
import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from shoal.console import err, out

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = Path("examples/digits-lightning")
ROW = "2.13-cpu"


def run(*command: str) -> None:
    """Show a command, run it, and end the demo with its exit code if it fails."""
    err.print(Text(f"\n$ {' '.join(command)}", style="bold"))
    program = ROOT / ".venv" / "bin" / command[0]
    done = subprocess.run([str(program), *command[1:]], cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"demo: {command[0]} {command[1]} failed with exit code {done.returncode}: see above")


def main() -> None:
    """Run all stages and print how long each took, the accuracy, and where the model lies."""
    seconds = {name: float(value) for name, _, value in (argument.partition("=") for argument in sys.argv[1:])}
    job = f"digits-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
    data = EXAMPLE / "channels" / "train"
    model = Path("runs") / job / "output" / "model.tar.gz"
    stages = {
        "image": ("shoal", "build", ROW),
        "data": ("python", str(EXAMPLE / "prepare.py"), str(data)),
        "training, 2 hosts x 2 ranks": ("shoal", "run", str(EXAMPLE / "job.json"), "--job-name", job),
        "check on this machine": ("python", str(EXAMPLE / "verify.py"), str(model), str(data), "--at-least", "0.95"),
    }
    for name, command in stages.items():
        start = time.monotonic()
        run(*command)
        seconds[name] = time.monotonic() - start

    table = Table("stage", "seconds", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for name, value in seconds.items():
        table.add_row(name, f"{value:.1f}")
    table.add_row("[bold]all[/]", f"[bold]{sum(seconds.values()):.1f}[/]")
    out.print()
    out.print(table)
    out.print(f"\nmodel: {model}")


if __name__ == "__main__":
    main()
