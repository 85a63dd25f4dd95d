"""No sentence of a page or of an error is longer than 25 words; what is longer yet is listed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
MOST_WORDS: Final = 25
PAGES: Final = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LOGGED: Final = frozenset({"debug", "info", "warning", "error", "exception"})

_CODE: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PICTURE: Final = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)]*\)|\[[^\]]*\])")
_TARGET: Final = re.compile(r"^\[[^\]]+\]: .*$", re.MULTILINE)
_BLOCK: Final = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |#|\|))|(?<=\S) \| |^\| ", re.M)
_SPAN: Final = re.compile(r"(`+).+?\1", re.DOTALL)
_END: Final = re.compile(r"[.!?][)\"”*_]*\s+(?=\S)")
_ABBREVIATION: Final = re.compile(r"\b(e\.g|i\.e|etc|vs)\.")
_WORD: Final = re.compile(r"\w")


def long_sentences(text: str) -> Iterator[str]:
    """The sentences of a text with more than ``MOST_WORDS`` words."""
    for sentence in _END.split(_ABBREVIATION.sub(r"\1", text)):
        words = [word for word in sentence.split() if _WORD.search(word)]
        if len(words) > MOST_WORDS:
            yield " ".join(words)


def long_in_page(page: str) -> list[str]:
    """A page's long sentences: of prose, list items and cells. A piece of code is one word."""
    text = _TARGET.sub("", _PICTURE.sub("\n\n", _CODE.sub("\n\n", page)))
    text = _LINK.sub(r"\1", _SPAN.sub("code", text))
    return [found for block in _BLOCK.split(text) for found in long_sentences(block)]


def text_of(node: ast.expr) -> str:
    """A text that is written out, in which a value stands as one word; else none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or "value" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case _:
            return ""


def is_log(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr in LOGGED


def long_in_errors(source: str) -> list[str]:
    """The long sentences of what a module raises or logs. A semicolon ends one: advice follows."""
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node.exc for node in nodes if isinstance(node, ast.Raise)]
    calls += [node for node in nodes if isinstance(node, ast.Call) and is_log(node.func)]
    texts = [text_of(each) for call in calls if isinstance(call, ast.Call) for each in call.args]
    return [found for text in texts for part in text.split("; ") for found in long_sentences(part)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_no_long_sentence(page: Path) -> None:
    assert long_in_page(page.read_text(encoding="utf-8")) == []


def test_errors_have_no_long_sentence() -> None:
    found = {
        name_of(path): long
        for path in sorted((ROOT / "dcp").rglob("*.py"))
        if (long := long_in_errors(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_planted_long_sentences_are_found() -> None:
    long = " ".join(["word"] * 26)
    short = " ".join(["word"] * 25)
    assert long_in_page(f"# A\n\n- {short}\n  {short}\n- {short}. {short}.\n") == [
        f"{short} {short}"
    ]
    assert long_in_page(f"| {short} | {short} |\n| a | {long} |") == [long]
    assert long_in_page(f"[{long}](x) `{long}`\n\n```\n{long}\n```\n") == [f"{long} code"]
    assert long_in_errors(f"raise E(f'{short}; {{x}} ' 'do {short}')") == [f"value do {short}"]
