"""A picture of a schedule as SVG: a row for each rank, a box for each task, bubbles in grey. Standard library only."""

from __future__ import annotations

from html import escape

from .schedule import FORWARD, Event, Schedule

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 58, 44
ROW, GAP = 40, 8
# Told apart by brightness too, for those who do not see the colours; text on each has a contrast over 7 to 1.
FILL = {"forward": "#a9cdf4", "backward": "#f2c45a"}
EDGE = {"forward": "#2b6cb0", "backward": "#a06a00"}
WAITING = "#e9ebee"
# Boxes narrower than this (pixels) get no number.
LABELLED = 13


def svg(schedule: Schedule, title: str = "") -> str:
    """The picture, as a whole document."""
    height = TOP + schedule.ranks * (ROW + GAP) + BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / schedule.length if schedule.length else 0.0
    title = title or heading(schedule)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(title, quote=True)}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold" fill="#1a202c">{escape(title)}</text>',
        *_legend(),
    ]
    for rank in range(schedule.ranks):
        top = TOP + rank * (ROW + GAP)
        share = schedule.busy(rank) / schedule.length if schedule.length else 0.0
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{ROW}" fill="{WAITING}"/>')
        parts.append(f'<text x="8" y="{top + 17}" fill="#1a202c">rank {rank}</text>')
        parts.append(f'<text x="8" y="{top + 32}" font-size="11" fill="#4a5568">{share:.0%} busy</text>')
    parts.extend(_box(event, scale) for event in schedule.events if event.end > event.start)
    parts.append(_axis(schedule, height))
    parts.append("</svg>\n")
    return "\n".join(parts)


def heading(schedule: Schedule) -> str:
    """What the picture shows, in a line."""
    return (
        f"{schedule.pipeline} pipeline: {schedule.ranks} ranks, {schedule.microbatches} micro-batches, "
        f"{schedule.active_microbatches} active at most: {schedule.bubble:.0%} bubble"
    )


def _legend() -> list[str]:
    parts, x = [], LEFT
    entries = [("forward", FILL["forward"]), ("backward", FILL["backward"]), ("waiting (bubble)", WAITING)]
    for text, colour in entries:
        parts.append(f'<rect x="{x}" y="33" width="14" height="14" fill="{colour}" stroke="#718096"/>')
        parts.append(f'<text x="{x + 20}" y="45" fill="#1a202c">{text}</text>')
        x += 40 + 7 * len(text)
    parts.append(f'<text x="{x}" y="45" fill="#4a5568">a number is a micro-batch</text>')
    return parts


def _box(event: Event, scale: float) -> str:
    x, width = LEFT + event.start * scale, (event.end - event.start) * scale
    y = TOP + event.rank * (ROW + GAP)
    kind = "forward" if event.phase == FORWARD else "backward"
    box = (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{FILL[kind]}" stroke="{EDGE[kind]}">'
        f"<title>{kind} of micro-batch {event.microbatch} on rank {event.rank}</title></rect>"
    )
    if width < LABELLED:
        return box
    middle = f'x="{x + width / 2:.2f}" y="{y + ROW / 2 + 4}"'
    return f'{box}<text {middle} text-anchor="middle" fill="#1a202c">{event.microbatch}</text>'


def _axis(schedule: Schedule, height: int) -> str:
    y = height - BOTTOM + 6
    right = WIDTH - RIGHT
    return (
        f'<path d="M{LEFT} {y}H{right}m-6 -4l6 4l-6 4" fill="none" stroke="#4a5568"/>'
        f'<text x="{right}" y="{y + 20}" text-anchor="end" fill="#4a5568">time of one step: '
        f"{schedule.length:.3g} times the forward pass of one micro-batch on one device</text>"
    )
