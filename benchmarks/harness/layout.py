"""Where the ranks of a measurement sit: pure data, no effects."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINKS = ("1gbit", "unshaped")
MOST_RANKS = 32  # Some 250 MB each.


@dataclass(frozen=True)
class Layout:
    """`hosts` x `ranks_per_host` ranks; `link` is the rate of each host's link, or "" inside one host."""

    hosts: int
    ranks_per_host: int
    link: str = ""

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def name(self) -> str:
        """As on the command line: ``1x2``, ``2x1@1gbit``."""
        return f"{self.hosts}x{self.ranks_per_host}" + (f"@{self.link}" if self.link else "")

    @property
    def words(self) -> str:
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        ranks = "1 rank" if self.ranks_per_host == 1 else f"{self.ranks_per_host} ranks"
        link = {"": "", "unshaped": ", links unshaped"}.get(self.link, f", links of {self.link[:-4]} Gbit/s")
        return f"{hosts} x {ranks}{link}"

    @property
    def shaped(self) -> bool:
        """Whether links have a limit."""
        return self.link not in ("", "unshaped")

    def host_of(self, rank: int) -> int:
        """Ranks are dealt out host by host."""
        return rank // self.ranks_per_host


LAYOUTS = tuple(
    [Layout(1, 2), Layout(1, 4)] + [Layout(h, r, link) for h, r in ((2, 1), (4, 1), (2, 2)) for link in LINKS]
)


def layout_named(name: str) -> list[Layout]:
    """Layouts that `name` stands for, be they among LAYOUTS or not; ``2x1`` without a link stands for both links.

    Raises:
        ValueError: no layout, or one of too many ranks.
    """
    parts = re.fullmatch(r"([1-9]\d?)x([1-9]\d?)(?:@(.+))?", name)
    hosts, ranks, link = (int(parts[1]), int(parts[2]), parts[3]) if parts else (0, 0, None)
    links = LINKS if hosts > 1 else ("",)
    if not 2 <= hosts * ranks <= MOST_RANKS or link not in (None, *links):
        raise ValueError(
            f"--layout: {name!r} is no layout: write HOSTSxRANKS, 2 to {MOST_RANKS} ranks in all, and for several "
            f"hosts @{' or @'.join(LINKS)} (without: both)"
        )
    return [Layout(hosts, ranks, one) for one in links if link in (None, one)]


def bytes_of(text: str) -> int:
    """``4K``, ``1M``, ``128M`` or a plain number; a multiple of 64, so that every rank count divides it.

    Raises:
        ValueError: not a size.
    """
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdigit() or int(digits) == 0 or int(digits) * factor % 64:
        raise ValueError(f"--sizes: {text!r} is no size: write 4K, 1M, 128M or a multiple of 64 bytes")
    return int(digits) * factor


def size_name(size: int) -> str:
    """1048576 -> ``1 MiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
