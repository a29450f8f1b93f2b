"""Two runs side by side: what differs, what is noise, and the page that says so."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from report_samples import host, observed, ranks, write_run

from shoal.report.compare import differences, sentence
from shoal.report.observed import Observed


def steps(seed: int, factor: float = 1.0, count: int = 400) -> Any:
    dice = random.Random(seed)
    return ranks(4, count, own=lambda rank, number: factor * 0.1 * (1 + 0.2 * dice.random()))


def words(before: Observed, after: Observed) -> dict[str, str]:
    return {one.figure: one.word for one in differences(before, after)}


def test_two_runs_of_the_same_are_the_same() -> None:
    """Of twenty pairs with the same distribution, none differs: three standard errors, and 1 %."""
    for seed in range(20):
        pair = observed(steps=steps(seed)), observed(steps=steps(seed + 100))
        assert words(*pair)["median step"] == "no difference"
        assert "within the noise" in sentence(differences(*pair))


@pytest.mark.parametrize(("factor", "word"), [(0.9, "better"), (1.1, "worse")])
def test_a_tenth_is_seen(factor: float, word: str) -> None:
    pair = observed(steps=steps(1)), observed(steps=steps(2, factor))
    assert words(*pair)["median step"] == word
    assert ("shorter" if word == "better" else "longer") in sentence(differences(*pair))


def test_noise_hides_what_is_smaller() -> None:
    """A change of 5 % is seen in steady steps, and not in steps that drift by half of themselves."""

    def drifting(factor: float, drift: float) -> Observed:
        return observed(steps=ranks(2, 400, own=lambda rank, number: factor * 0.1 * (1 + drift * (number // 40 % 5))))

    assert words(drifting(1.0, 0.0), drifting(1.05, 0.0))["median step"] == "worse"
    assert words(drifting(1.0, 0.25), drifting(1.05, 0.25))["median step"] == "no difference"


def test_hardware_is_compared_while_steps_ran() -> None:
    """Before the first step, 5 s after the first sample, the second run's GPUs are idle: that does not count."""
    late = host(points=80, gpu=lambda point, device: 0.0 if point < 10 else 90.0)
    pair = observed(host(points=80), ranks(2, 250)), observed(late, ranks(2, 250))
    assert words(*pair)["GPU"] == "no difference"
    low = observed(host(points=80, gpu=lambda point, device: 50.0), ranks(2, 250))
    assert words(pair[0], low)["GPU"] == "worse"
    assert words(low, pair[0])["GPU"] == "better"


def test_too_short_to_tell_and_nothing_to_compare() -> None:
    short = observed(steps=ranks(2, 2))
    assert words(short, short)["median step"] == "too short to tell"
    assert sentence(differences(short, short)) == "The runs are too short to tell a difference from noise"
    assert differences(observed(), short) == []
    assert sentence([]) == "No steps to compare; nothing differs by more than noise"
    unmeasured = observed(steps=[{**one, "CollectiveSeconds": None} for one in ranks(2, 50)])
    assert "waiting for collectives" not in words(unmeasured, observed(steps=ranks(2, 50)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    before = write_run(folder / "before", host(points=100), steps(1), {"TrainingJobName": "first<b>"})
    return before, write_run(folder / "after", host(points=100), steps(2, 0.8))


def test_the_page_in_a_browser(pair: tuple[Path, Path], report: Callable[..., Any], browser: Browser) -> None:
    done = report(*pair)
    assert done.returncode == 0, done.stderr
    page_file = pair[1] / "rule-output/ProfilerReport/profiler-output/compared-with-before.html"
    assert done.stdout == f"{page_file}\n"
    assert done.stderr.startswith("Steps are 1")
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(page_file.as_uri())
    assert page.locator("h1").inner_text() == "first<b> and after"
    assert page.locator(".verdict").inner_text() == done.stderr.splitlines()[0]
    rows = {
        row.locator("th").inner_text(): row.locator("td").last.inner_text() for row in page.locator("tr:has(td)").all()
    }
    assert rows["median step"] == "better"
    assert rows["GPU"] == "no difference"
    assert page.locator("figure svg:visible path[style*='--line-2']").count() > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
    assert wrong == []


def test_as_json_and_more_than_two(pair: tuple[Path, Path], report: Callable[..., Any]) -> None:
    printed = json.loads(report(*pair, "--json").stdout)
    step = next(one for one in printed["differences"] if one["figure"] == "median step")
    assert step["word"] == "better"
    assert step["change"] == pytest.approx(step["after"] - step["before"])
    many = report(*pair, pair[0])
    assert (many.returncode, many.stderr) == (2, "shoal: report: 3 runs: give one, or two to compare\n")
