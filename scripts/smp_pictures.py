"""Draw docs/pictures/smp-call.svg: how one micro-batch's call of a module on another rank travels.

    python scripts/smp_pictures.py

The drawing is a list of steps below; a test checks that the file is current.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "smp-call.svg"
WIDTH, TOP, ROW = 960, 96, 46
# x of each rank's line.
LINES = (200, 480, 760)
HEADS = ("rank 0: the step function", "rank 1: layers 4 to 7", "rank 2: layers 8 to 11")
INK, SOFT = "#1a202c", "#4a5568"
FILL = {"forward": "#a9cdf4", "backward": "#f2c45a", "other": "#e9ebee"}


class Work(NamedTuple):
    """A rank works from the top of a row to that of a later one."""

    rank: int
    row: int
    rows: int
    kind: str
    text: str


class Message(NamedTuple):
    """An arrow from one rank to another, at the end of a row."""

    sender: int
    receiver: int
    row: int
    text: str


STEPS: tuple[Work | Message, ...] = (
    Work(0, 0, 1, "forward", "layers 0 to 3"),
    Message(0, 1, 1, "run 4 to 7, then 8 to 11"),
    Work(0, 1, 2, "other", "(other tasks)"),
    Work(0, 3, 1, "forward", "loss"),
    Work(0, 4, 2, "other", "(other tasks)"),
    Work(1, 1, 1, "forward", "layers 4 to 7"),
    Message(1, 2, 2, "run 8 to 11"),
    Work(2, 2, 1, "forward", "layers 8 to 11"),
    Message(2, 0, 3, "output"),
    Message(0, 2, 4, "gradient of the output"),
    Work(2, 4, 1, "backward", "layers 8 to 11"),
    Message(2, 1, 5, "gradient of its input"),
    Work(1, 5, 1, "backward", "layers 4 to 7"),
    Message(1, 0, 6, "gradient of its input"),
    Work(0, 6, 1, "backward", "layers 0 to 3"),
)
LAST = 7


def picture() -> str:
    """The drawing, as a whole document."""
    height = TOP + LAST * ROW + 28
    title = "One micro-batch on three ranks (time runs down)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(WIDTH / 2, 28, title, "middle", INK, 15),
    ]
    for x, head in zip(LINES, HEADS, strict=True):
        parts.append(_text(x, 62, head, "middle", INK))
        parts.append(f'<path d="M{x} 74V{height - 12}" stroke="#a0aec0" stroke-dasharray="4 4"/>')
    parts += [_box(step) for step in STEPS if isinstance(step, Work)]
    parts += [_arrow(step) for step in STEPS if isinstance(step, Message)]
    return "\n".join([*parts, "</svg>\n"])


def _box(work: Work) -> str:
    x, y = LINES[work.rank] - 62, TOP + work.row * ROW
    box = f'<rect x="{x}" y="{y}" width="124" height="{work.rows * ROW}" fill="{FILL[work.kind]}" stroke="{SOFT}"/>'
    return box + _text(x + 62, y + work.rows * ROW / 2 + 5, work.text, "middle", INK)


def _arrow(message: Message) -> str:
    towards = 1 if message.receiver > message.sender else -1
    y = TOP + message.row * ROW
    start, end = LINES[message.sender] + 62 * towards, LINES[message.receiver] + 62 * towards * -1
    # Over a rank in between the text keeps to the side of the receiver.
    near = end - towards * 78
    return (
        f'<path d="M{start} {y}H{end}m{-9 * towards} -5l{9 * towards} 5l{-9 * towards} 5" fill="none" '
        f'stroke="{INK}" stroke-width="1.5"/>' + _text(near, y - 7, message.text, "middle", INK, 11)
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str, size: int = 13) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def main() -> int:
    """Write the file."""
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
