"""The example of docs/smp-tensor.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from smp_jobs import run_ranks

PAGE = Path(__file__).parents[2] / "docs" / "smp-tensor.md"


def test_the_example_of_the_page_trains(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(code) == 1
    script = tmp_path / "script.py"
    script.write_text(code[0], encoding="utf-8")
    for rank in run_ranks(script, 2):
        said = re.search(r"rank \d: torch.Size\(\[64, 16\]\) (\d\.\d+)", rank.stdout)
        assert said is not None, rank.stdout
        assert float(said[1]) < 4.5  # it begins at log(100)
