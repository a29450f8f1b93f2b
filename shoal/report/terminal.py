"""The verdict and the rules on a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.report import summary
from shoal.report.observed import Observed
from shoal.report.outcome import Outcome

_COLOURS = {"fired": "bold red", "silent": "green", "not judged": "dim"}


def show(console: Console, seen: Observed, outcomes: list[Outcome]) -> None:
    """Print them: the verdict first, then what fired with what to change, then one line a rule."""
    said = summary.verdict(outcomes)
    console.print(f"[{'bold green' if said.good else 'bold red'}]{escape(said.sentence)}[/]")
    for outcome in said.reasons:
        console.print(f"  [bold]{outcome.rule}[/]: {escape(outcome.summary)}")
        console.print(f"    change: {escape(outcome.advice)}")
    for remark in summary.remarks(seen.faults):
        console.print(f"  [yellow]note:[/] {escape(remark)}")
    if percentiles := summary.percentiles(seen):
        console.print("  steps: " + ", ".join(f"{name} {value:.4g} s" for name, value in percentiles.items()))
    table = Table(box=None, pad_edge=False, show_header=False)
    for outcome in outcomes:
        if outcome.rule != "OverallSystemUsage" and not outcome.fired:
            colour = _COLOURS[outcome.state]
            why = f": {outcome.why_not}" if outcome.why_not else ""
            table.add_row(f"  {outcome.rule}", f"[{colour}]{outcome.state}{escape(why)}[/]")
    console.print(table)
