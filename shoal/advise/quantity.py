"""Bytes as people write them, in and out."""

import re

from shoal.errors import ShoalError

GB = 10**9
TIB = 2**40
_MOST = 1e24
_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
_BY_LOWER = {unit.lower(): unit for unit in _UNITS}


def parse_bytes(option: str, text: str) -> int:
    """Return the bytes that `text`, such as `100GB` or `1.5 TiB`, stands for: at least one.

    Raises:
        ShoalError: it is no size; the message names `option`.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", text.strip())
    unit = _BY_LOWER.get(found.group(2).lower()) if found else None
    size = float(found.group(1)) * _UNITS[unit] if found and unit else 0.0
    if not 0.5 < size < _MOST:
        raise ShoalError(f"{option}: {text!r} is not a size: write a number and a unit ({', '.join(_UNITS)}): 100GB")
    return round(size)


def show(count: float) -> str:
    """Return bytes in the largest decimal unit that leaves at least 1, with three digits: `3.33 GB`."""
    for unit in ("PB", "TB", "GB", "MB", "kB"):
        if count >= _UNITS[unit]:
            return f"{_digits(count / _UNITS[unit])} {unit}"
    return f"{_digits(count)} B"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
