"""The page as a reader has it: in a browser, dark and light, on a phone, printed, without network or script."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from report_samples import host, ranks, spread, write_run

Contrasts = Callable[[Page], list[tuple[float, str]]]
HOSTILE = 'a<script>alert(1)</script>&"b'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    busy = spread(60)
    events = [
        one
        for node in ("algo-1", "algo-2")
        for one in host(
            node,
            points=1200,
            cpu=lambda point, core: 99.0 if busy(point) else 20.0,
            gpu=lambda point, device: 2.0 if busy(point) else 90.0,
        )
    ]
    job = {
        "TrainingJobName": HOSTILE,
        "TrainingJobStatus": "Failed",
        "SecondaryStatus": "Failed",
        "FailureReason": HOSTILE,
        "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
    }
    counted = {"all_reduce": {"Calls": 2, "Bytes": 24_000_000, "Seconds": 0.04}, "broadcast": {"Calls": 1, "Bytes": 10}}
    late = ranks(4, 400, own=lambda rank, number: 0.15 if rank == 3 else 0.1)
    run = write_run(tmp_path_factory.mktemp("run"), events, ({**one, "Collectives": counted} for one in late), job)
    (run / "profiler-output" / "environment").mkdir()
    for node, torch in (("algo-1", "2.13.0"), ("algo-2", HOSTILE)):
        about = {"NodeId": node, "Python": "3.11.2", "Packages": {"torch": torch, "numpy": "2.4.6"}}
        (run / "profiler-output" / "environment" / f"{node}.json").write_text(json.dumps(about))
    return run


@pytest.fixture(scope="module")
def written(run: Path, report: Any) -> tuple[Path, subprocess.CompletedProcess[str]]:
    done = report(run)
    assert done.returncode == 0, done.stderr
    page = run / "rule-output/ProfilerReport/profiler-output/profiler-report.html"
    assert done.stdout == f"{page}\n"
    return page, done


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser, written: tuple[Path, Any]) -> Iterator[Page]:
    """Open the page, wide; at the end nothing may have gone wrong, run or been asked for."""
    wrong: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": 1000, "height": 800}, color_scheme=request.param)
    opened = context.new_page()
    opened.on("console", lambda message: wrong.append(message.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("dialog", lambda dialog: wrong.append(dialog.message))
    opened.on("request", lambda asked: requests.append(asked.url))
    opened.goto(written[0].as_uri())
    yield opened
    context.close()
    assert wrong == []
    assert {one for one in requests if not one.startswith("data:")} == {written[0].as_uri()}


def test_the_verdict_stands_first(page: Page) -> None:
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("main p").first.inner_text() == "A GPU is idle while the processors are busy (4 rules fired)"
    reasons = page.locator(".reason").all_inner_texts()
    assert [text.split()[0] for text in reasons] == [
        "CPUBottleneck",
        "StragglerRank",
        "CommunicationBound",
        "LowGPUUtilization",
    ]
    assert "Change: move preprocessing off the critical path" in reasons[0]


def test_every_plot_is_drawn(page: Page) -> None:
    plots = page.locator("figure.plot")
    names = [plot.get_attribute("data-plot") for plot in plots.all()]
    assert names == ["host-0", "host-1", "steps", "stragglers"]
    for plot in plots.all():
        drawing = plot.locator("svg:visible")
        assert drawing.count() == 1
        box = drawing.bounding_box()
        assert box is not None
        assert box["width"] > 800
        assert box["height"] > 100
        marks = drawing.locator("path, rect, image")
        assert sum(1 for mark in marks.all() if (shape := mark.bounding_box()) and shape["width"] > 20) > 3
    curves = page.locator("figure[data-plot=host-0] svg:visible path[style*='--line-1']")
    assert max(len(str(curve.get_attribute("d"))) for curve in curves.all()) > 200  # more than a line in the legend
    assert page.locator("figure[data-plot=host-0] svg:visible path[style*='--fire']").count() > 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_all_text_is_readable(page: Page, contrasts: Contrasts) -> None:
    found = contrasts(page)
    assert len(found) > 50
    assert [text for contrast, text in found if contrast < 4.5] == []


def test_rules_have_evidence_and_figures(page: Page) -> None:
    rows = page.locator("#CPUBottleneck tbody tr")
    assert {row.locator("td").first.inner_text() for row in rows.all()} == {"algo-1", "algo-2"}
    assert "720 of 1200 samples (60 %)" in rows.first.inner_text()
    states = dict(
        page.locator("section > .scroll > table > tbody > tr").evaluate_all(
            "(rows) => rows.filter((row) => row.className).map((row) => [row.cells[0].innerText, row.className])"
        )
    )
    assert states["CPUBottleneck"] == "fired"
    assert states["IOBottleneck"] == "silent"
    assert states["Dataloader"] == "not-judged"


def test_collectives_and_versions(page: Page) -> None:
    def rows(title: str) -> list[list[str]]:
        table = page.locator(f"xpath=//*[self::h2 or self::h3][text()='{title}']/following-sibling::div[1]//table")
        found = table.evaluate("(one) => [...one.tBodies[0].rows].map((r) => [...r.cells].map((c) => c.innerText))")
        return list(found)

    assert rows("Collectives of a rank in a step") == [
        ["all_reduce", "algo-1", "2", "2", "24 MB", "0.04", "600 MB/s"],
        ["all_reduce", "algo-2", "2", "2", "24 MB", "0.04", "600 MB/s"],
        ["broadcast", "algo-1", "2", "1", "10 B", "not measured", ""],
        ["broadcast", "algo-2", "2", "1", "10 B", "not measured", ""],
    ]
    assert rows("Environment") == [
        ["Python", "3.11.2"],
        ["torch", f"2.13.0 (algo-1), {HOSTILE} (algo-2): hosts differ"],
        ["numpy", "2.4.6"],
    ]


def test_links_lead_to_logs(page: Page, run: Path) -> None:
    links = page.locator("section a[href*='logs'], section a[href$='job.json']")
    assert links.all_inner_texts() == ["job.json", "algo-1.log"]
    found = page.evaluate("[...document.querySelectorAll('section ul a')].map((one) => one.href)")
    assert found == [(run / "job.json").as_uri(), (run / "logs" / "algo-1.log").as_uri()]


def test_on_a_phone_nothing_is_wider_than_the_screen_and_letters_are_not_shrunk(
    browser: Browser, written: tuple[Path, Any]
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True)
    page = context.new_page()
    page.goto(written[0].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("svg:visible").count() == 4
    sizes = page.locator("svg:visible text").evaluate_all(
        "(texts) => texts.map((text) => [parseFloat(getComputedStyle(text).fontSize), text.getScreenCTM()])"
        ".map(([size, on]) => size * Math.hypot(on.a, on.b))"
    )
    assert min(sizes) > 9
    context.close()


def test_printed_it_has_a_few_pages_on_white(browser: Browser, written: tuple[Path, Any], tmp_path: Path) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(written[0].as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    content = page.pdf(format="A4")
    context.close()
    assert content.startswith(b"%PDF")
    assert 2 <= content.count(b"/Type /Page\n") <= 10


def test_the_terminal_says_the_same(written: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    said = written[1].stderr
    assert said.splitlines()[0] == "A GPU is idle while the processors are busy (4 rules fired)"
    assert "  StragglerRank: rank 3 of algo-2 is 0.05 s later than the median rank" in said
    assert "Dataloader             not judged: no sampler counted loader processes" in said


def test_a_file_for_each_rule_in_the_original_shape(written: tuple[Path, Any], run: Path, report: Any) -> None:
    folder = written[0].parent / "profiler-reports"
    content = json.loads((folder / "CPUBottleneck.json").read_text())
    assert list(content) == ["RuleTriggered", "Violations", "Details", "Datapoints", "RuleParameters"]
    assert (content["RuleTriggered"], content["Violations"], content["Datapoints"]) == (2, 1440, 2400)
    assert content["RuleParameters"].startswith("threshold:50\ngpu_threshold:10\ncpu_threshold:90\n")
    printed = json.loads(report(run, "--json").stdout)
    assert printed == {path.stem: json.loads(path.read_text()) for path in folder.iterdir()}
