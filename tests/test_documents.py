"""What the documentation shows is what happens: its Python is run, no file of ours edited."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if "```python" in page.read_text()
)


def test_some_pages_show_python() -> None:
    assert ROOT / "docs" / "testing-consumers.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})  # noqa: S102 -- it is our own page


def test_no_page_has_the_reader_edit_a_file_of_the_checkout() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    edited = re.findall(r"\$EDITOR (\S+)", pages)
    assert edited
    assert [name for name in edited if (ROOT / name).exists()] == []
