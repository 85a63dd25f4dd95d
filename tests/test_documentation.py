"""Runs the documentation's Python, checks its examples, and reads the first words of docstrings."""

import ast
import re
from pathlib import Path

import pytest

from dcp.installation import WHEEL
from tools.site.hooks import SPLIT_PAGES, on_page_content, with_moved_sections

ROOT = Path(__file__).parents[1]
OF_A_LAKE = ROOT / "docs" / "howto" / "python.md"
"""Its examples go on from each other, with a cluster: ``test_python_api.py`` runs them."""
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "```python" in page.read_text() and page != OF_A_LAKE
)


def test_some_pages_show_python() -> None:
    assert ROOT / "docs" / "howto" / "testing-consumers.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})  # noqa: S102 -- it is our own page


def test_no_page_has_the_reader_edit_a_file_of_the_checkout() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    edited = re.findall(r"\$EDITOR (\S+)", pages)
    assert edited
    assert [name for name in edited if (ROOT / name).exists()] == []


OF_AN_INDEX = re.compile(r"pip3? install (?:-\S+ )*'?dcplake\b(?![-\w.]*\.whl)|\bdcplake\[")
"""dcplake where pip would look for it in a package index, which has none of ours."""
TEXTS = ("*.md", "*.py", "*.sh", "*.toml", "*.html", "*.json", "*.yml", "*.in", "Makefile")


def test_no_text_has_dcplake_installed_from_an_index_that_does_not_have_it() -> None:
    tops = [ROOT / name for name in ("airflow", "benchmarks", "conf", "dcp", "dcplake", "deploy")]
    tops += [ROOT / name for name in ("docs", "jobs", "schemas", "tests", "tools")]
    files = [path for pattern in TEXTS for top in tops for path in top.rglob(pattern)]
    files += [path for pattern in TEXTS for path in ROOT.glob(pattern)]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        for match in OF_AN_INDEX.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
    assert f"pip install '{WHEEL}[" in (ROOT / "docs/howto/install.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("extra", ["", "[quality]"])
def test_planted_words_that_would_ask_an_index_are_found(extra: str) -> None:
    for words in (f"pip install {'dcplake'}{extra}", f"pip install -U '{'dcplake'}{extra}'"):
        assert OF_AN_INDEX.search(words)
    for words in (
        f"pip install '.{extra}'",
        f"pip install 'dcplake-0.1.0-py3-none-any.whl{extra}'",
    ):
        assert not OF_AN_INDEX.search(words)


def test_the_site_shows_a_bar_in_the_code_of_a_table_without_its_backslash() -> None:
    """GitHub does; `make interop` looks at the whole site in a browser."""
    cell = "<td style='x'><code>run \\| head</code>, a \\| b</td>"
    assert on_page_content(f"<pre>\\|</pre><p>{cell}</p>") == (
        "<pre>\\|</pre><p><td style='x'><code>run | head</code>, a | b</td></p>"
    )


def test_old_anchors_of_a_split_page_lead_to_its_new_pages() -> None:
    template = 'var anchor="";location.href="x"+anchor'
    html = with_moved_sections(template, SPLIT_PAGES[1], {"a": "docs/howto/b.md#c"})
    assert html == (
        'var anchor="";var moved={"a": "b.html#c"}[anchor];location.href=moved?moved:"x"+anchor'
    )
    assert '"howto/b.html"' in with_moved_sections(
        template, SPLIT_PAGES[0], {"a": "docs/howto/b.md"}
    )


def test_old_anchors_lead_to_pages_that_are_there() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    _, _, listed = text.partition("  moved_sections:")
    targets = re.findall(r"^    [\w-]+: (docs/\S+?\.md)(?:#\S+)?$", listed, re.MULTILINE)
    assert len(targets) > 20
    assert [target for target in targets if not (ROOT / target).exists()] == []


NAMED_FILES = re.compile(r"`([\w./*<>-]+\.py)`")


def missing_files(page: str) -> list[str]:
    """Python files that a page names, by path or by name alone, and that do not exist."""
    tops = [ROOT / name for name in ("dcp", "dcplake", "jobs", "tests", "tools", "benchmarks")]
    return [
        name
        for name in NAMED_FILES.findall(page)
        if not any(ROOT.glob(name))
        and ("/" in name or not any(each for top in tops for each in top.rglob(name)))
    ]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_the_python_files_that_a_page_names_exist(page: Path) -> None:
    assert missing_files(page.read_text(encoding="utf-8")) == []


def test_planted_names_of_missing_files_are_found() -> None:
    page = "`stream.py`, `disk_*.py`, `no_such.py`, `dcp/server/no/stream.py`, `dcp/errors.py`"
    assert missing_files(page) == ["no_such.py", "dcp/server/no/stream.py"]


RIDDLES = re.compile(r"(What|How|Who|Whose|Whether|Where|Which|Why)\b")
"""First words of docstrings that ask where they should say what a thing is or does."""


def riddles_in(source: str) -> list[tuple[int, str]]:
    """Line and first line of each docstring that begins as a question does."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (getattr(node, "lineno", 1), text.partition("\n")[0])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented)
        and (text := ast.get_docstring(node))
        and RIDDLES.match(text)
    ]


def test_docstrings_begin_with_the_thing_or_the_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted([*(ROOT / "dcp").rglob("*.py"), *(ROOT / "dcplake").glob("*.py")])
        for line, text in riddles_in(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_planted_riddle_is_found() -> None:
    source = '"""A thing."""\ndef f():\n    """Whether it is."""\n'
    assert riddles_in(source) == [(2, "Whether it is.")]
