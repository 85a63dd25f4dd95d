r"""Hooks of mkdocs: show ``\|`` in code of a table as ``|``; redirect the anchors of a split page.

A bar ends a cell, so pages have it with a backslash there, which Python-Markdown leaves in code.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any, Final

SPLIT_PAGES: Final = ("docs/operations", "docs/howto/operations")
"""The old addresses, without their ending, of the page that became one page for each question."""
_CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page's HTML with the bars of its tables as they are meant."""
    return _CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


def on_post_build(config: Any) -> None:
    """Lead the old anchors of a split page to their new pages, before its own redirect acts."""
    sections = config["extra"]["moved_sections"]
    for old in SPLIT_PAGES:
        page = Path(config["site_dir"]) / f"{old}.html"
        html = page.read_text(encoding="utf-8")
        page.write_text(with_moved_sections(html, old, sections), encoding="utf-8")


def with_moved_sections(html: str, old: str, sections: dict[str, str]) -> str:
    """Return a redirect page that follows ``sections``: new address in the docs by old anchor."""
    targets = {
        anchor: posixpath.relpath(new.replace(".md", ".html"), posixpath.dirname(old))
        for anchor, new in sections.items()
    }
    moved, ours = f"var moved={json.dumps(targets)}[anchor];", "location.href=moved?moved:"
    return html.replace("location.href=", moved + ours, 1)
