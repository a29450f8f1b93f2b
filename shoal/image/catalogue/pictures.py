"""Where the bars and lines of the page's two pictures stand, in percent. Pure."""

import datetime as dt
from dataclasses import dataclass

from shoal.image.catalogue.entries import Entry


@dataclass(frozen=True)
class Bar:
    """One image's size beside its budget and the vendor's image."""

    entry: str
    name: str
    mb: float
    percent: float
    budget_mb: int | None
    budget_percent: float
    vendor_mb: int | None
    vendor_of: str
    vendor_percent: float
    times: float  # how many times larger the vendor's is


@dataclass(frozen=True)
class Window:
    """The time in which images of some torch versions get patches."""

    torch: list[str]
    rows: list[str]
    ga: str
    eop: str
    left: float
    width: float


@dataclass(frozen=True)
class Timeline:
    """All windows, on one scale."""

    first: str
    last: str
    today: float
    years: list[tuple[str, float]]
    windows: list[Window]


def bars(entries: list[Entry]) -> list[Bar]:
    """Return a bar for the newest image of each flavour of each entry; the longest of all things shown is 100%."""
    shown = []
    for entry in entries:
        newest = {image.flavour: image for image in reversed(entry.images)}
        shown += [(entry, image) for image in newest.values()]
    budgets = [int((entry.declared or {}).get("size_mb") or 0) for entry, _ in shown]
    vendors = [image.baseline.mb if image.baseline else 0 for _, image in shown]
    longest = max([1.0, *budgets, *vendors, *(image.size_bytes / 1e6 for _, image in shown)])
    found = []
    for (entry, image), budget, vendor in zip(shown, budgets, vendors, strict=True):
        mb = image.size_bytes / 1e6
        name = entry.id if image.flavour == "sagemaker" else f"{entry.id} {image.flavour}"
        found.append(
            Bar(
                entry=entry.id,
                name=name,
                mb=mb,
                percent=_percent(mb, longest),
                budget_mb=budget or None,
                budget_percent=_percent(budget, longest),
                vendor_mb=vendor or None,
                vendor_of=image.baseline.of if image.baseline else "",
                vendor_percent=_percent(vendor, longest),
                times=vendor / mb if mb else 0.0,
            )
        )
    return found


def timeline(entries: list[Entry], today: dt.date) -> Timeline | None:
    """Return the windows of support, one for rows that share them, newest first; None where no row has any."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        declared = entry.declared or {}
        if declared.get("ga") and declared.get("eop"):
            groups.setdefault((declared["ga"], declared["eop"]), []).append(entry)
    if not groups:
        return None
    dates = [dt.date.fromisoformat(day) for pair in groups for day in pair]
    first = dt.date(min(dates).year, 1, 1)
    last = dt.date(max(dates).year + 1, 1, 1)
    days = (last - first).days

    def at(day: dt.date) -> float:
        return _percent((day - first).days, days)

    windows = []
    for (ga, eop), rows in sorted(groups.items(), key=lambda group: group[0], reverse=True):
        left = at(dt.date.fromisoformat(ga))
        torch = list(dict.fromkeys(entry.value("torch") for entry in rows))
        width = round(at(dt.date.fromisoformat(eop)) - left, 3)
        windows.append(Window(torch, [entry.id for entry in rows], ga, eop, left, width))
    years = [(str(year), at(dt.date(year, 1, 1))) for year in range(first.year, last.year)]
    return Timeline(first.isoformat(), last.isoformat(), at(today), years, windows)


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 3)
