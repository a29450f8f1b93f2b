"""The page as a reader has it: in a browser, by its buttons and fields."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from catalogue_samples import FOREIGN, HOSTILE, NEW, OLD, ROW, UNBUILT, Open, Shoal
from playwright.sync_api import Locator, Page, expect

Contrasts = Callable[[Page], list[tuple[float, str]]]
OTHER = FOREIGN.partition(":")[2].rpartition("-")[0]  # the entry of an image that no row of versions.yaml makes
NEW_TAG, OLD_TAG, FOREIGN_TAG = (reference.partition(":")[2] for reference in (NEW, OLD, FOREIGN))


def cells(table: Locator) -> list[list[str]]:
    return [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all() if row.is_visible()]


def rows(page: Page) -> list[str]:
    return [row[0] for row in cells(page.locator("#rows-table"))]


def test_every_row_is_there_and_what_was_not_built_says_so(opened: Open) -> None:
    page = opened(now="2026-12-01T12:00:00Z")
    assert {row[0]: (row[-2], row[-1].split()[-1:], row[1]) for row in cells(page.locator("#rows-table"))} == {
        ROW: ("1,157", ["supported"], "built"),
        UNBUILT: ("–", ["ended"], "declared"),
        OTHER: ("5,500", [], "built not in versions.yaml"),
    }
    card = page.locator(f"[id='{UNBUILT}']")
    card.locator("summary").click()
    assert "so nothing below is measured. shoal build never-built builds it." in card.inner_text()
    assert card.locator("article").count() == 0
    tags = [f"pytorch-training:2.12.99-cpu-py311-debian12-{flavour}" for flavour in ("sagemaker", "ec2")]
    assert card.locator(".tags code").all_inner_texts() == tags
    assert "AWS'S IMAGE OF THE SAME TAG HOLDS" in card.inner_text()


def test_tags_and_measurements_of_an_image(opened: Open) -> None:
    card = opened().locator(f"[id='{FOREIGN_TAG}']")
    assert card.locator(".tags code").all_inner_texts() == [
        FOREIGN,
        "pytorch-training:2.9.1-gpu-py312",
        f"pytorch-training:{OTHER}",
    ]
    facts = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert facts["CUDA"] == "12.6"
    assert facts["cuDNN"] == "9.7.0"
    assert facts["size"] == "5,500 MB"
    assert card.locator("h5").all_inner_texts() == ["Pull", "Run", "Extend"]  # an ec2 image has no `train`
    assert "--gpus all" in card.locator("pre").nth(1).inner_text()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("numpy 1.26", [("numpy", "1.26.4", [f"{ROW} (older)", OTHER])]),
        ("numpy==1.26.4", [("numpy", "1.26.4", [f"{ROW} (older)", OTHER])]),
        ("NumPy", [("numpy", "1.26.4", [f"{ROW} (older)", OTHER]), ("numpy", "2.4.6", [ROW])]),
        ("numpy 1.2", []),  # 1.26 does not begin with the version 1.2
        ("openssh 9.2", [("openssh-server", "1:9.2p1-2", [ROW, OTHER])]),
        ("LGPL", [("libc6", "2.36-9+deb12u13", [f"{ROW} (older)"]), ("libc6", "2.36-9+deb12u14", [ROW, OTHER])]),
    ],
)
def test_search_finds_packages_and_the_images_that_have_them(
    opened: Open, query: str, found: list[tuple[str, str, list[str]]]
) -> None:
    page = opened()
    page.fill("#search", query)
    page.click("#found-table th button")
    table = cells(page.locator("#found-table"))
    assert sorted((row[0], row[1], row[4].split(", ")) for row in table) == found
    assert set(rows(page)) == {image.split()[0] for _, _, images in found for image in images}


def test_search_leads_to_the_image_that_has_it(opened: Open) -> None:
    page = opened()
    page.fill("#search", "six")
    page.click(f"#found-table a:text-is('{ROW} (older)')")
    expect(page.locator(f"[id='{OLD_TAG}']")).to_be_in_viewport()


def test_search_finds_rows_by_what_they_are(opened: Open) -> None:
    page = opened()
    for query, left in (
        ("gpu 12.6", [OTHER]),
        ("debian12 2.12.99", [UNBUILT]),
        ("cu126", [OTHER]),
        ("no such", []),
        ("declared cpu", [UNBUILT]),
    ):
        page.fill("#search", query)
        assert rows(page) == left, query
        assert page.is_visible("#no-rows") == (not left)
    page.fill("#search", "")
    assert rows(page) == [ROW, OTHER, UNBUILT]
    assert page.is_hidden("#found")


def test_columns_sort_both_ways_as_people_read_them(opened: Open) -> None:
    page = opened()
    head = page.locator("#rows-table th", has_text="PyTorch")
    head.get_by_role("button").click()
    assert rows(page) == [OTHER, UNBUILT, ROW]  # 2.9.1, 2.12.99, 2.13.0
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").click()
    assert rows(page) == [ROW, UNBUILT, OTHER]
    page.locator("#rows-table th", has_text="size").get_by_role("button").click()
    assert rows(page) == [UNBUILT, ROW, OTHER]
    assert head.get_attribute("aria-sort") is None


def test_a_comparison_says_what_shoal_diff_says(opened: Open, shoal: Shoal, clone: Path) -> None:
    page = opened()
    page.select_option("#before", OLD_TAG)
    page.select_option("#after", NEW_TAG)
    shown = [[cell.replace("–", "-") for cell in row[:4]] for row in cells(page.locator("#difference-table"))]
    done = shoal("diff", clone / ".shoal" / "old.json", clone / ".shoal" / f"{ROW}.json", "--json")
    kinds = {"packages": "python", "debian": "debian"}
    said = [
        [kinds[one["kind"]], one["name"], one["before"] or "-", one["after"] or "-"]
        for one in json.loads(done.stdout)["changes"]
    ]
    assert shown == said
    assert len(said) == 3
    assert page.inner_text("#difference") == "1157 MB, −90.6 MB. Packages: 0 added, 1 removed, 2 changed."
    page.click("#swap")
    assert [row[4] for row in cells(page.locator("#difference-table"))] == ["changed", "added", "changed"]
    page.select_option("#after", FOREIGN_TAG)
    assert ["image", "cudnn", "–", "9.7.0", "added"] in cells(page.locator("#difference-table"))


def test_packages_of_one_image_can_be_sifted_and_sorted(opened: Open) -> None:
    page = opened()
    packages = page.locator(f"[id='{NEW_TAG}'] details.packages")
    assert packages.locator("summary").inner_text() == "2 Python and 2 Debian packages"
    packages.locator("summary").click()
    expect(packages.locator("tbody tr")).to_have_count(4)  # made a moment after, when the browser says it is open
    assert [row[0] for row in cells(packages)] == ["Evil_Package", "numpy", "libc6", "openssh-server"]
    packages.get_by_role("button", name="version").click()
    assert [row[1] for row in cells(packages)] == ["1:9.2p1-2", "1.0", "2.4.6", "2.36-9+deb12u14"]
    packages.locator(".package-filter").fill("debian")
    assert [row[0] for row in cells(packages)] == ["openssh-server", "libc6"]
    assert packages.locator(".package-count").inner_text() == "2 of 4"


def test_what_a_package_writes_into_its_metadata_is_text(opened: Open) -> None:
    page = opened()
    page.fill("#search", "evil")
    assert cells(page.locator("#found-table"))[0][3] == HOSTILE
    assert page.locator(f"[id='{NEW_TAG}'] dd", has_text=HOSTILE).count() == 1
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_links_lead_to_a_row_a_search_and_a_comparison(opened: Open) -> None:
    page = opened(f"#{UNBUILT}")
    expect(page.locator(f"[id='{UNBUILT}']")).to_have_attribute("open", "")
    expect(page.locator(f"[id='{UNBUILT}']")).to_be_in_viewport()
    page = opened("#search=numpy%202.4")
    assert page.input_value("#search") == "numpy 2.4"
    assert len(cells(page.locator("#found-table"))) == 1
    page = opened(f"#compare={FOREIGN_TAG}..{OLD_TAG}")
    assert (page.input_value("#before"), page.input_value("#after")) == (FOREIGN_TAG, OLD_TAG)
    page.click("#swap")
    assert page.evaluate("location.hash") == f"#compare={OLD_TAG}..{FOREIGN_TAG}"
    page.fill("#search", "numpy 1.26")
    assert page.evaluate("location.hash") == "#search=numpy%201.26"
    for nonsense in ("#nowhere", "#search=%", "#compare=a..b", "#compare=", "#%E0%A4%A"):
        assert rows(opened(nonsense))[:1] in ([ROW], []), nonsense


def test_support_is_that_of_the_day_the_page_is_read(opened: Open) -> None:
    for day, state in (("2026-07-19", "planned"), ("2026-07-20", "supported"), ("2028-01-01", "ended")):
        page = opened(now=f"{day}T12:00:00Z")
        assert page.locator(f"tr[data-entry='{ROW}'] .support").inner_text() == state
        assert page.inner_text("#supported") == str(int(state == "supported"))
    # 2020-01-01 to 2028-01-01 is the scale: its last day is its end.
    left = page.locator("#timeline .today").first.evaluate("line => line.style.left")
    assert left == "100%"


def test_bars_are_as_long_as_sizes_are(opened: Open) -> None:
    page = opened()
    bars = page.locator(".bar-row", has=page.locator(f"a:text-is('{ROW}')"))
    width = {
        name: bars.locator(f".{name}").evaluate("bar => bar.getBoundingClientRect().width")
        for name in ("ours", "vendor")
    }
    assert width["vendor"] / width["ours"] == pytest.approx(7200 / 1157, rel=0.02)
    assert "AWS 7,200 MB (2.12.99): 6.2 times" in bars.inner_text()


def test_commands_name_the_reader_s_registry(opened: Open) -> None:
    page = opened()
    pull = page.locator(f"[id='{NEW_TAG}'] pre").first
    assert pull.inner_text() == f"docker pull REGISTRY/{NEW}"
    page.fill("#registry", "registry.example:5000/")
    assert pull.inner_text() == f"docker pull registry.example:5000/{NEW}"


def test_a_command_is_copied(opened: Open) -> None:
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    page.locator(f"[id='{NEW_TAG}'] .copy").first.click()
    expect(page.locator(f"[id='{NEW_TAG}'] .copy").first).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"docker pull REGISTRY/{NEW}"


def everything_open(page: Page) -> None:
    page.fill("#search", "e")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    expect(page.locator("details.packages tbody tr").last).to_be_visible()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_screen_needs_to_scroll_sideways(opened: Open, width: int) -> None:
    page = opened(viewport={"width": width, "height": 800})
    everything_open(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(opened: Open, contrasts: Contrasts, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    everything_open(page)
    found = contrasts(page)
    assert len(found) > 100
    assert [text for contrast, text in found if contrast < 4.5] == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(14, 21, 28)") == (scheme == "dark")


def test_paper_has_what_was_built_and_no_buttons(opened: Open) -> None:
    page = opened()
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = false; })")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.is_visible(f"[id='{NEW_TAG}']")
    assert page.is_hidden("#search")
    assert page.is_hidden("#compare")


def test_without_javascript_rows_sizes_and_tags_are_there(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert rows(page) == [ROW, OTHER, UNBUILT]
    assert page.is_visible(".bars")
    assert page.locator(f"[id='{NEW_TAG}'] .tags").is_visible()
    assert "shoal diff A B" in page.inner_text("#compare")
