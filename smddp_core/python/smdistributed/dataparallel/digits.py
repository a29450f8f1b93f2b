"""Numbers in what people and launchers write."""

from __future__ import annotations

import re


def is_whole_number(text: str) -> bool:
    """Whether ``text`` is one in plain digits; ``str.isdigit`` also takes some that ``int`` does not, such as ``²``."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None
