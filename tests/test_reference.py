"""The reference pages are what the code says, and the pages' commands are ones that there are."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer
from typer.main import get_command

from dcp.cli.main import COMMANDS, command
from dcp.errors import DcplakeError
from dcp.lake.config.settings_load import load_settings
from tools.reference import REFERENCE, pages

ROOT: Final = Path(__file__).resolve().parents[1]
GENERATED: Final = pages()
WRITTEN_BY_HAND: Final = sorted(
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if page.name not in GENERATED or page.name == "metrics.md"  # of which the code writes one table
)
PLACEHOLDERS: Final = ("…", "...", "[", "|--")
"""What stands for words that the reader puts there: such lines are no commands yet."""
INCOMPLETE: Final = (
    r"^Missing (?:argument|option)|requires an argument|unable to parse string|found 'N'"
)
"""Of a command that is talked about: `dcplake serve --replicas N`."""
JOBS: Final = {"replicate": "run", "backfill": "backfill", "maintain": "maintain"}
"""The Spark jobs that are commands, and which."""


@pytest.mark.parametrize("name", GENERATED)
def test_a_reference_page_is_what_the_code_says(name: str) -> None:
    page = (REFERENCE / name).read_text(encoding="utf-8")
    assert page == GENERATED[name], "run `python -m tools.reference`"


def exit_codes() -> set[int]:
    """Return the codes that commands and jobs end with after an error."""
    errors = [DcplakeError]
    for error in errors:
        errors += error.__subclasses__()
    return {each.exit_code for each in errors if each.__module__.startswith("dcp.")}


def test_a_how_to_page_lists_the_exit_codes_that_there_are() -> None:
    page = (ROOT / "docs" / "howto" / "act-on-an-exit-code.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| code \| meaning .*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert listed == exit_codes() | {0, 141}


def commands_in(page: str) -> Iterator[list[str]]:
    """The words of each command of dcplake in a page: a line of a block, or a text in backticks."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = [block for kind, block in blocks if kind in ("", "sh", "bash", "console", "text")]
    lines = [line for block in shown for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"(?<!`)`(dcplake [^`\n]+)`", page)
    for line in lines:
        found = re.match(r"(?:\$ )?(?:[*0-9/]+ +){0,5}(?:\S*/)?(dcplake|spark-submit) (.*)", line)
        if found is None or any(mark in found[2].split("#")[0] for mark in PLACEHOLDERS):
            continue
        words = shlex.split(re.split(r" [|&>]", found[2])[0], comments=True)
        if found[1] == "spark-submit":
            job = next((word for word in words if Path(word).stem in JOBS), None)
            if job is None:
                continue
            words = [JOBS[Path(job).stem], *words[words.index(job) + 1 :]]
        if re.fullmatch("[a-z-]+", words[0]) and "--help" not in words:
            yield words


def refused(words: list[str]) -> str:
    """Return why a command refuses these words; nothing where it takes them."""
    name, *options = words
    if name not in COMMANDS:
        return f"there is no command {name}"
    try:
        get_command(command(name)).make_context(name, options).close()
    except typer.TyperException as error:
        if not re.search(INCOMPLETE, error.format_message()):
            return f"dcplake {shlex.join(words)}: {error.format_message()}"
    return ""


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_ones_that_there_are(page: Path) -> None:
    found = [refused(words) for words in commands_in(page.read_text(encoding="utf-8"))]
    assert [each for each in found if each] == []


def test_the_targets_of_make_that_pages_name_are_ones_that_there_are() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in WRITTEN_BY_HAND)
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", shown, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test", "site"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_the_configuration_that_a_page_shows_is_one(tmp_path: Path) -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in WRITTEN_BY_HAND)
    files = re.findall(r"^```toml\n(.*?)^```", shown, re.DOTALL | re.MULTILINE)
    files += re.findall(r"^cat > \w+\.toml <<END\n(.*?)^END", shown, re.DOTALL | re.MULTILINE)
    assert len(files) >= 2
    for text in files:
        if text.startswith("collection = "):  # a contract: tests/lake/config/test_contracts.py
            continue
        (tmp_path / "shown.toml").write_text(text, encoding="utf-8")
        load_settings(tmp_path / "shown.toml", environment={})


def test_most_pages_show_commands_and_a_planted_one_is_refused() -> None:
    texts = [page.read_text(encoding="utf-8") for page in WRITTEN_BY_HAND]
    assert sum(len(list(commands_in(text))) for text in texts) > 100
    planted = (
        "```\n$ dcplake run --onc  # all\nspark-submit jobs/replicate.py --nope\n```\n`dcplake rum`"
    )
    assert len([each for each in map(refused, commands_in(planted)) if each]) == 3
