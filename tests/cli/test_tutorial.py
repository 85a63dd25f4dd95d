"""docs/tutorial/first-lake.md: its commands as they stand there, and what they print."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from dcp.cli.main import main
from tests.cli.serving import Serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE: Final = Path(__file__).parents[2] / "docs" / "tutorial" / "first-lake.md"
BLOCKS: Final = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)
BRANCH: Final = re.compile(r"\b[0-9a-f]{16}\b")
OTHER_PORTS: Final = ("load", "failover", "replication")
"""The commands that have no settings, and are told the cluster's ports by an option."""


def steps() -> Iterator[tuple[list[str], str]]:
    """The words of each command of the page, and what is printed."""
    for kind, text in BLOCKS:
        if kind == "sh":
            yield ["bash", "-c", text], ""
            continue
        for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, printed = step.partition("\n")
            yield shlex.split(line), printed


def is_like(found: str, printed: str) -> bool:
    """Return whether an output is that of the page, in which … stands for anything.

    A round that takes ten seconds says more than on the page. Branches have other ids each time.
    """
    found, printed = (BRANCH.sub("0" * 16, text) for text in (found, printed))
    found = re.sub(r"^round \d+: \d+ of .*\n", "", found, flags=re.MULTILINE)
    pattern = ".*?".join(map(re.escape, printed.strip().split("…")))
    return re.fullmatch(pattern, found.strip(), re.DOTALL) is not None


@pytest.mark.slow
def test_the_tutorial(
    tmp_path: Path,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "console"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DCPLAKE_PASSWORD", raising=False)
    commands = []
    (serve, _), *others = steps()
    assert serve[:2] == ["dcplake", "serve"]
    process = Serving("Administrator", "--port", "0", *serve[2:])
    try:
        seeds = ",".join(process.seeds)
        monkeypatch.setenv("DCPLAKE_SOURCE_SEEDS", seeds)
        # The session's tasks know the environment that it began with.
        (tmp_path / "password").write_text("password")
        monkeypatch.setenv("DCPLAKE_SOURCE_PASSWORD_FILE", str(tmp_path / "password"))
        for (program, *words), printed in others:
            if program == "export":
                monkeypatch.setenv(*words[0].split("="))
            elif program == "bash":
                subprocess.run([program, *words], check=True)
            else:
                ports = ["--seeds", seeds] if words[0] in OTHER_PORTS else []
                assert main([*words, *ports]) == 0, words
                found = capsys.readouterr()
                assert is_like(found.err + found.out, printed), (words, found.err, found.out)
                commands.append(words[0])
    finally:
        spark.sql("USE spark_catalog.default")
        assert process.stop() == 0
    assert len(commands) == 16 and {"load", "plan", "status", "rollbacks", "verify"} < {*commands}


def test_another_output_is_not_that_of_the_page() -> None:
    assert is_like("a 1 b\n", "a … b")
    assert not is_like("a 1 c", "a … b")
    assert not is_like("a 1 b\nmore", "a … b")
    assert is_like("round 1: 0 of 3 seqnos\na 1 b", "a … b")
    assert is_like(f"1@{15 * '0'}b {{}}", f"1@{15 * '0'}a {{}}")
    assert not is_like(f"2@{15 * '0'}b {{}}", f"1@{15 * '0'}a {{}}")
