"""smp.explain: what it prints, returns, draws and warns of."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import partition_models as models
import pytest
import torch
from smdistributed.modelparallel.torch import config
from smdistributed.modelparallel.torch.exceptions import SMPConfigError, SMPUnsupportedError, SMPValueError
from smdistributed.modelparallel.torch.partition import decide, explain, trace
from torch import nn

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Equal neighbours in a row, what lies on one rank not taken apart, sums for each rank, aligned columns."""
    model = models.chain([16] * 9)
    found = explain(model, lambda: model(torch.zeros(4, 16)), partitions=2, microbatches=4)
    text = capsys.readouterr().out
    assert text == f"{found}\n"
    lines = text.splitlines()
    assert lines[0].split() == ["module", "rank", "parameters", "memory", "compute", "cost"]
    assert lines[1].split() == ["(model)", "Sequential", "0", "(0,1)", "8.5", "KiB", "100.0%", "100.0%", "100.0%"]
    assert lines[2].split() == ["0", "..", "3", "4", "x", "Linear", "0", "4.2", "KiB", "50.0%", "50.0%", "50.0%"]
    assert lines[3].split() == ["4", "..", "7", "4", "x", "Linear", "1", "4.2", "KiB", "50.0%", "50.0%", "50.0%"]
    assert lines[6].split() == ["0", "4.2", "KiB", "50.0%", "50.0%", "50.0%", "80%"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert "interleaved pipeline: 2 ranks, 4 micro-batches, 4 active at most: 20% bubble" in text


def test_the_document() -> None:
    """JSON with a row for each module, fractions that add up, and the events of the schedule."""
    model = models.Tied()
    tokens = torch.zeros(2, 5, dtype=torch.long)
    found = explain(model, lambda: model(tokens), partitions=2, microbatches=3)
    document: dict[str, Any] = json.loads(found.to_json())
    assert [row["name"] for row in document["rows"]] == [name for name, _ in model.named_modules()]
    root, *inner = document["rows"]
    assert root["cost"] == pytest.approx(1.0)
    leaves = [row for row in inner if row["name"] != "blocks"]
    assert sum(row["cost"] for row in leaves) == pytest.approx(1.0)
    assert document["ranks"]["head"] == document["ranks"]["embedding"] == 0
    assert document["schedule"]["bubble"] == pytest.approx(found.schedule.bubble)
    assert len(document["schedule"]["events"]) == 3 * 2 * len({event.visit for event in found.schedule.events})


def test_a_module_list_in_sequence_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Statement 14 and C12: a ModuleList run in sequence over several ranks: use nn.Sequential; also in the log."""
    model = models.Tied()
    tokens = torch.zeros(2, 5, dtype=torch.long)
    found = explain(model, lambda: model(tokens), partitions=2)
    assert any("'blocks' is an nn.ModuleList" in line and "nn.Sequential" in line for line in found.warnings)
    assert "! 'blocks' is an nn.ModuleList" in str(found)
    with caplog.at_level(logging.WARNING):
        decide(model, trace(model, lambda: model(tokens)), config.from_values({"partitions": 2}))
    assert "'blocks' is an nn.ModuleList" in caplog.text
    experts = models.Routed()
    quiet = explain(experts, lambda: experts(torch.zeros(4, 5)), partitions=3)
    assert not any("ModuleList" in line for line in quiet.warnings)
    chained = models.chain([8] * 5)
    assert explain(chained, lambda: chained(torch.zeros(2, 8)), partitions=2).warnings == []


def test_the_way_through_the_ranks() -> None:
    """An nn.Sequential hands over from rank to rank, a loop over an nn.ModuleList comes back; both end on rank 0."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    def ranks_visited(model: nn.Module) -> list[int]:
        x = torch.zeros(2, 8)
        found = explain(model, lambda: model(x), partitions=3, microbatches=1)
        forward = [event for event in found.schedule.events if event.phase == "forward"]
        assert sum(event.end - event.start for event in forward) == pytest.approx(1.0)
        return [event.rank for event in forward]

    assert ranks_visited(models.chain([8] * 7)) == [0, 1, 2, 0]
    assert ranks_visited(Loop()) == [0, 1, 0, 1, 0, 2, 0, 2, 0]


def test_what_else_is_wrong_is_said() -> None:
    """Ranks without work, one with much more than its share and why, modules that never ran."""
    few = models.chain([4, 4])
    assert any("rank(s) 1, 2 have nothing to do" in line for line in explain(few, partitions=3).warnings)
    heavy = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 2), nn.Linear(2, 2))
    lines = explain(heavy, lambda: heavy(torch.zeros(2, 64)), partitions=2).warnings
    assert any("rank 0 has" in line and "is '0'" in line for line in lines)
    routed = models.Routed()
    lines = explain(routed, lambda: routed(torch.zeros(4, 5)), partitions=2).warnings
    assert any("never ran in the trace: 'unused', 'experts.0', 'experts.2'" in line for line in lines)


def test_without_a_trace() -> None:
    found = explain(models.chain([8] * 5), partitions=2)
    assert not found.traced
    assert "not traced" in str(found)
    assert [found.ranks[str(index)] for index in range(4)] == [0, 0, 1, 1]


def test_a_file(tmp_path: Path) -> None:
    target = tmp_path / "step.svg"
    found = explain(models.chain([8] * 5), path=str(target), partitions=2)
    assert target.read_text() == found.to_svg()
    with pytest.raises(SMPValueError, match=r"step\.png.*SVG"):
        found.draw("step.png")


def test_wrong_use() -> None:
    with pytest.raises(SMPValueError, match=r"it must be an nn\.Module"):
        explain("model")  # type: ignore[arg-type]
    with pytest.raises(SMPValueError, match="no setting 'colour'"):
        explain(nn.Linear(1, 1), colour="red")
    with pytest.raises(SMPConfigError, match="microbatches"):
        explain(nn.Linear(1, 1), microbatches=0)


class Wrapper(nn.Module):
    """What explain needs of a partitioned DistributedModel."""

    partitioned = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_a_partitioned_model_is_explained_as_it_was_placed() -> None:
    """With the costs it had then, although parameters of other ranks are empty by now."""
    model = models.chain([8] * 5)
    cfg = config.from_values({"partitions": 2, "microbatches": 2})
    decide(model, trace(model, lambda: model(torch.zeros(2, 8))), cfg)
    for name in ("2", "3"):
        for parameter in model.get_submodule(name).parameters():
            parameter.data = torch.empty(0)
    found = explain(Wrapper(model))
    assert [found.rows[index].parameter_bytes for index in (1, 4)] == [288, 288]
    assert found.schedule.microbatches == 2
    with pytest.raises(SMPUnsupportedError, match="global rank 0"):
        explain(Wrapper(models.chain([2, 2])))


def test_the_drawing_in_the_docs_is_this_codes() -> None:
    """docs/pictures/smp-pipeline.svg is what the example of docs/smp-partition.md draws."""
    text = (DOCS / "smp-partition.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(example, names)
    drawn = (DOCS / "pictures" / "smp-pipeline.svg").read_text()
    assert names["found"].to_svg() == drawn
    assert "\n".join(line.rstrip() for line in str(names["found"]).splitlines()) in text
