"""The page of a lake's figures."""

import json
from importlib import resources
from typing import Any, Final

from dcp.lake.task_board.task_stats import WAITED_FOR

_PAGE: Final = "page.html"


def page_html(figures: dict[str, Any] | None = None) -> str:
    """Return the page with these figures; without any it asks for ``figures.json``."""
    text = "null" if figures is None else json.dumps(figures).replace("<", "\\u003c")
    page = _part(_PAGE).replace("INSERT WAITED_FOR", json.dumps(dict(WAITED_FOR)))
    for name in ("LICENSE", "uPlot.min.css", "uPlot.iife.min.js"):
        page = page.replace(f"INSERT {name}", _part(f"uplot/{name}"))
    return page.replace("FIGURES", text)


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8").strip()
