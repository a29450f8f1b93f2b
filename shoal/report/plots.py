"""Figures -> SVG, by matplotlib. Colours become the page's own variables, so that one drawing serves light and dark.

Each plot is drawn twice, wide and narrow: a wide one shrunk to a phone has letters nobody can read.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shoal.advise import quantity
from shoal.report.shapes import Heat, Timeline

# Colours that stand for variables of the page's style sheet, and for nothing else.
_VARIABLES = {
    "#010203": "--ink",
    "#010204": "--muted",
    "#010205": "--grid",
    "#010206": "--fire",
    "#010211": "--line-1",
    "#010212": "--line-2",
    "#010213": "--line-3",
    "#010214": "--line-4",
    "#010215": "--line-5",
    "#010216": "--line-6",
}
_INK, _MUTED, _GRID, _FIRE, *_LINES = _VARIABLES
HOST, STEPS, STRAGGLERS = "host-{}", "steps", "stragglers"  # names of plots
_WIDE, _NARROW = 880, 370  # pixels
_NARROW_LABELS = 3  # of a legend's row
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 11,
    "text.color": _INK,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _MUTED,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "lines.linewidth": 1.3,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Plot:
    """One drawing in two sizes, and what it shows in words."""

    name: str
    title: str
    wide: str
    narrow: str


@dataclass(frozen=True)
class _Margins:
    """Pixels around and between the panels of a plot."""

    left: int = 74  # "999.9 MB/s" and a label beside it
    right: int = 12
    top: int = 22
    bottom: int = 40
    between: int = 32
    legend_row: int = 0  # what each row of the legend more than one takes at the top, where the plot is narrow

    def apply(self, figure: Figure, width: int, height: int, *, narrow: bool) -> None:
        """Give the panels the rest."""
        top = self.top + (self.legend_row if narrow else 0)
        panels = len(figure.axes)
        room = (height - top - self.bottom - self.between * (panels - 1)) / panels
        figure.subplots_adjust(
            left=self.left / width,
            right=1 - self.right / width,
            top=1 - top / height,
            bottom=self.bottom / height,
            hspace=self.between / room,
        )


def _plot(
    name: str, title: str, height: int, draw: Callable[[Figure, bool], None], margins: _Margins | None = None
) -> Plot:
    """Without margins matplotlib finds them, which takes as long as all the rest."""
    drawn = {}
    for size, width in (("wide", _WIDE), ("narrow", _NARROW)):
        with mpl.rc_context(_STYLE):
            figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout=None if margins else "constrained")
            figure.patch.set_alpha(0)
            draw(figure, size == "narrow")
            if margins:
                margins.apply(figure, width, height, narrow=size == "narrow")
            for axes in figure.axes:
                axes.patch.set_alpha(0)
            drawn[size] = _svg(figure, f"{name}-{size}", title)
    return Plot(name, title, drawn["wide"], drawn["narrow"])


def _svg(figure: Figure, prefix: str, title: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several drawings share a page: their ids must not.
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r"font: (?:bold )?([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    label = re.sub(r'[<>&"]', " ", title)
    size = re.compile(r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt"|width="[\d.]+pt"')
    head, end, body = svg.partition(">")
    return f'{size.sub("", head)} role="img" aria-label="{label}"{end}{body}'


def timeline(number: int, line: Timeline, minutes: float) -> Plot:
    """Draw what one host did: percentages above, rates below, what fired shaded."""

    def draw(figure: Figure, narrow: bool) -> None:
        count = 1 + bool(line.rates)
        panels = figure.subplots(count, 1, sharex=True, squeeze=False, height_ratios=[3, 2][:count])[:, 0]
        for curve, colour in zip(line.shares, _LINES, strict=False):
            panels[0].plot(curve.minutes, curve.values, color=colour, label=curve.label)
        panels[0].set_ylim(0, 102)
        panels[0].set_ylabel("%")
        _shade(panels[0], line.fired)
        if line.rates:
            for curve, colour in zip(line.rates, _LINES, strict=False):
                panels[1].plot(curve.minutes, curve.values, color=colour, label=curve.label)
            panels[1].set_ylim(bottom=0)
            panels[1].yaxis.set_major_formatter(FuncFormatter(_rate))
            panels[1].yaxis.set_major_locator(MaxNLocator(4))
            _shade(panels[1], line.fired)
        for panel in panels:
            panel.grid(visible=True, linewidth=0.6)
            panel.set_xlim(0, max(minutes, 0.01))
            if panel.lines:
                panel.legend(
                    loc="lower left",
                    bbox_to_anchor=(0, 1),
                    ncols=_NARROW_LABELS if narrow else 6,
                    frameon=False,
                    borderaxespad=0,
                )
        panels[-1].set_xlabel("minutes since the first sample")

    rules = sorted({rule for rule, _began, _ended in line.fired})
    fired = f"; shaded: {', '.join(rules)}" if rules else ""
    title, height = f"{line.node}: what it used over time{fired}", 350 if line.rates else 240
    return _plot(
        HOST.format(number), title, height, draw, _Margins(legend_row=16 * (len(line.shares) > _NARROW_LABELS))
    )


def _shade(axes: Axes, fired: list[tuple[str, float, float]]) -> None:
    spans = [(began, max(ended - began, 0.0)) for _rule, began, ended in fired]
    axes.broken_barh(spans, (0, 1), transform=axes.get_xaxis_transform(), color=_FIRE, alpha=0.16, linewidth=0)


def _rate(value: float, _position: int) -> str:
    return f"{quantity.show(value)}/s" if value >= 1 else "0"


def histogram(seconds: list[float], percentiles: dict[str, float]) -> Plot:
    """Draw how long steps lasted; the longest percent is put into the last bar."""

    def draw(figure: Figure, _narrow: bool) -> None:
        axes = figure.subplots()
        values = np.array(seconds)
        end = max(percentiles["p99"] * 1.1, float(values.min()) * 1.001, 1e-9)
        axes.hist(np.minimum(values, end), bins=50, color=_LINES[0], range=(float(values.min()), end))
        axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
        for name in ("p50", "p95", "p99"):
            axes.axvline(percentiles[name], color=_INK, linewidth=0.9, linestyle=":")
            axes.annotate(name, (percentiles[name], 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
        axes.set_xlabel("seconds a step (longer ones in the last bar)")
        axes.set_ylabel("steps")
        axes.grid(visible=True, axis="y", linewidth=0.6)

    return _plot(STEPS, "How long steps lasted", 240, draw, _Margins())


def two_histograms(names: list[str], seconds: list[list[float]]) -> Plot:
    """Draw how long the steps of two runs lasted, each as a share of its own steps."""

    def draw(figure: Figure, _narrow: bool) -> None:
        axes = figure.subplots()
        values = [np.array(one) for one in seconds]
        first = min(float(one.min()) for one in values)
        end = max(float(np.percentile(one, 99)) * 1.1 for one in values)
        for name, one, colour in zip(names, values, _LINES, strict=False):
            weights = np.full(len(one), 100 / len(one))
            axes.hist(
                np.minimum(one, end),
                bins=50,
                range=(first, max(end, first * 1.001)),
                weights=weights,
                color=colour,
                alpha=0.55,
                label=name if len(name) <= 32 else f"{name[:30]}...",
            )
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0)
        axes.set_xlabel("seconds a step (longer ones in the last bar)")
        axes.set_ylabel("% of the steps")
        axes.grid(visible=True, axis="y", linewidth=0.6)

    return _plot("compared", "How long the steps of both runs lasted", 260, draw, _Margins())


def heat_map(late: Heat) -> Plot:
    """Draw how late each rank was over time."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        values = np.array([[np.nan if v is None else v for v in row] for row in late.values], dtype=float)
        limit = max(10.0, float(np.nanpercentile(np.abs(values), 99)))
        rows = len(late.ranks)
        image = axes.imshow(
            values,
            aspect="auto",
            cmap="coolwarm",
            vmin=-limit,
            vmax=limit,
            extent=(0, late.minutes, rows, 0),
            interpolation="nearest",
        )
        every = max(1, -(-rows // 16))
        axes.set_yticks([row + 0.5 for row in range(0, rows, every)])
        axes.set_yticklabels(
            [late.ranks[row].partition(" ")[0] if narrow else late.ranks[row] for row in range(0, rows, every)]
        )
        axes.set_ylabel("rank")
        axes.set_xlabel("minutes since the first sample")
        bar = figure.colorbar(image, ax=axes, fraction=0.05)
        bar.set_label("% of a step later")
        bar.outline.set_visible(False)

    height = 110 + min(22 * len(late.ranks), 360)
    return _plot(STRAGGLERS, "How much later each rank was than the median rank, over time", height, draw)
