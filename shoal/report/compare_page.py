"""The comparison of two runs as a page, and on a terminal."""

from jinja2 import Environment
from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.advise import quantity
from shoal.report import plots, summary
from shoal.report.compare import Difference, rules_changed, sentence
from shoal.report.observed import Observed
from shoal.report.outcome import Outcome

Judged = tuple[str, Observed, list[Outcome]]  # name, run, what the rules say


def shown(value: float, unit: str) -> str:
    """Return a figure with its unit."""
    if unit == "bytes/s":
        return f"{quantity.show(value)}/s"
    return f"{value:.1f} %" if unit == "%" else f"{value:.4g} {unit}"


def render(environment: Environment, style: str, runs: tuple[Judged, Judged], found: list[Difference]) -> str:
    """Return the page."""
    seconds = [seen.steps["Seconds"].to_list() for _name, seen, _outcomes in runs]
    names = [name for name, _seen, _outcomes in runs]
    plot = plots.two_histograms(names, seconds) if all(seconds) else None
    return environment.get_template("compare.html.j2").render(
        style=Markup(style),  # a file of this package
        names=names,
        verdicts=[summary.verdict(outcomes).sentence for _name, _seen, outcomes in runs],
        sentence=sentence(found),
        worse=any(one.word == "worse" for one in found if one.figure == "median step"),
        differences=found,
        rules=rules_changed(runs[0][2], runs[1][2]),
        plot=plot,
        show=shown,
        safe=Markup,
    )


def show(console: Console, runs: tuple[Judged, Judged], found: list[Difference]) -> None:
    """Print the sentence, then a line a figure."""
    console.print(f"[bold]{escape(sentence(found))}[/]")
    table = Table(box=None, pad_edge=False)
    for head in ("", "before", "after", "noise", ""):
        table.add_column(head, justify="left" if not head else "right")
    for one in found:
        noise = "" if one.noise is None else shown(one.noise, one.unit)
        colour = {"better": "green", "worse": "bold red", "no difference": "dim"}.get(one.word, "default")
        figures = [shown(value, one.unit) for value in (one.before, one.after)]
        table.add_row(f"  {one.figure}", *figures, noise, f"[{colour}]{one.word}[/]")
    console.print(table)
    for rule, then, now in rules_changed(runs[0][2], runs[1][2]):
        console.print(f"  {rule}: {then} before, {now} after")
