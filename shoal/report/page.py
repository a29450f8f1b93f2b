"""Outcomes and figures -> one HTML page that needs no network and no script."""

import os
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from shoal.advise import quantity
from shoal.report import figures, plots, summary
from shoal.report.draw import Draw, Drawing, here
from shoal.report.observed import Observed
from shoal.report.outcome import Outcome

ENVIRONMENT = Environment(
    loader=PackageLoader("shoal.report", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(seen: Observed, outcomes: list[Outcome], logs: list[tuple[str, str]], draw: Draw = here) -> str:
    """Return the page. `logs` are names and addresses, as they are from where the page will lie."""
    percentiles = summary.percentiles(seen)
    minutes = (seen.ended - seen.began) / 60
    late = figures.heat(seen)
    lines = figures.timelines(seen, outcomes)
    ranks = summary.communication(seen)
    drawings = [Drawing(plots.timeline, (number, line, minutes)) for number, line in enumerate(lines)]
    if percentiles:
        drawings.append(Drawing(plots.histogram, (seen.steps["Seconds"].to_list(), percentiles)))
    if late is not None:
        drawings.append(Drawing(plots.heat_map, (late,)))
    drawn = {plot.name: plot for plot in draw(drawings)}
    return ENVIRONMENT.get_template("page.html.j2").render(
        style=Markup(style()),  # a file of this package
        title=seen.job.get("TrainingJobName") or "training job",
        verdict=summary.verdict(outcomes),
        facts=summary.facts(seen),
        remarks=summary.remarks(seen.faults),
        outcomes=[outcome for outcome in outcomes if outcome.rule != "OverallSystemUsage"],
        why_short=summary.why_short,
        hosts=[drawn.pop(plots.HOST.format(number)) for number in range(len(lines))],
        shaded={line.node: sorted({rule for rule, _began, _ended in line.fired}) for line in lines},
        percentiles=percentiles,
        histogram=drawn.get(plots.STEPS),
        stragglers=drawn.get(plots.STRAGGLERS),
        ranks=ranks,
        collectives=summary.collectives(seen),
        versions=summary.versions(seen),
        usage=summary.usage(outcomes),
        show=quantity.show,
        minute=lambda time: f"{(time - seen.began) / 60:.1f}",
        logs=logs,
        safe=Markup,
    )


def style() -> str:
    """Return the style sheet of all pages."""
    return resources.files("shoal.report").joinpath("assets", "style.css").read_text(encoding="utf-8")


def links(run: Path, page_folder: Path) -> list[tuple[str, str]]:
    """Return the logs and the description of a run, and how a page in `page_folder` links to them."""
    found = [path for path in [run / "job.json", *sorted((run / "logs").glob("*"))] if path.is_file()]
    return [(path.name, os.path.relpath(path.resolve(), page_folder.resolve())) for path in found]
