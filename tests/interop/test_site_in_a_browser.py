"""The documentation's site, opened as files in a headless Chromium."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
WIDER_THAN_ITS_COLUMN = """
return [...document.querySelectorAll(".md-content pre code")]
  .filter(code => code.scrollWidth > code.clientWidth).map(code => code.innerText)
"""
WITH_A_BACKSLASH = """
return [...document.querySelectorAll("td, th")].map(cell => cell.innerText)
  .filter(text => text.includes("\\\\|"))
"""


@pytest.fixture(scope="module", autouse=True)
def site() -> Iterator[None]:
    subprocess.run(["make", "site"], cwd=ROOT, check=True, timeout=600)
    yield


def test_the_search_finds_pages_and_its_results_are_files(browser: Chrome) -> None:
    browser.get((SITE / "index.html").as_uri())
    field = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    browser.execute_script("arguments[0].focus()", field)
    field.send_keys("tombstone")
    wait = WebDriverWait(browser, 30)
    [first, *_] = wait.until(
        lambda _: browser.find_elements(By.CSS_SELECTOR, "a.md-search-result__link")
    )
    page = (first.get_attribute("href") or "").partition("?")[0].partition("#")[0]
    assert Path(page.removeprefix("file://")).suffix == ".html"
    assert "tombstone" in Path(page.removeprefix("file://")).read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("width", [1400, 800])
def test_every_page_shows_code_within_its_column_and_bars_without_backslash(
    browser: Chrome, width: int
) -> None:
    browser.set_window_size(width, 1000)
    wrong = {}
    pages = sorted(set(SITE.rglob("*.html")) - {SITE / "404.html"})  # for servers alone
    for page in pages:
        browser.get(page.as_uri())
        found = browser.execute_script(WIDER_THAN_ITS_COLUMN)
        found += browser.execute_script(WITH_A_BACKSLASH)
        if found:
            wrong[page.relative_to(SITE)] = found
    assert wrong == {}
    assert len(pages) > 20
    told = browser.get_log("browser")  # type: ignore[no-untyped-call]  # as Selenium has it
    assert [entry for entry in told if entry["level"] == "SEVERE"] == []


def test_no_page_asks_another_server() -> None:
    asking = [
        page
        for page in SITE.rglob("*.html")
        for word in ('src="http', 'rel="stylesheet" href="http')
        if word in page.read_text(encoding="utf-8")
    ]
    assert asking == []
