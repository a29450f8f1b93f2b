"""What several folders of tests share here: Debian's Chromium, and whether a page can be read in it."""

import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("script"))
      continue;
    const style = getComputedStyle(element);
    const colour = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [parse(colour), behind(element)].map(luminance);
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 120)]);
  }
  return found;
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return Debian's Chromium: playwright's own would be a download.

    One for all folders, because one process can have only one playwright at a time.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("no chromium: install the Debian package (TEST_PACKAGES in the Makefile)")
    with sync_playwright() as playwright:
        # Root has no sandbox; the page is our own.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def contrasts() -> Callable[[Page], list[tuple[float, str]]]:
    """Return a function: every text that shows, as its contrast by WCAG 2's formula and its element's beginning."""
    return lambda page: page.evaluate(_CONTRASTS)
