"""Makes the page of a lake: lag, rounds, rollbacks, tables; live, or as a file with its figures.

``page.html`` loads nothing: where it has no figures in it, it asks for ``figures.json`` beside it.
"""

import json
from datetime import datetime
from importlib import resources
from typing import Any, Final

from dcp.lake.monitor.figures import LakeFigures
from dcp.lake.monitor.run_watch import Health
from dcp.lake.tables.records import plain

_PAGE: Final = "page.html"


def figures_json(lake: LakeFigures, at: datetime, health: Health | None = None) -> dict[str, Any]:
    """Return the page's figures as a JSON object; times are ISO 8601, in UTC."""
    return {
        **plain(lake),
        "at": at.isoformat(),
        "health": None if health is None else health.to_json(),
        "replicas": [
            {
                **plain(each),
                "lag_seqnos": each.lag_seqnos(lake.highs),
                "lag_seconds": each.lag_seconds(at),
                "stale": len(each.stale),
            }
            for each in lake.replicas
        ],
    }


def page_html(figures: dict[str, Any] | None = None) -> str:
    text = "null" if figures is None else json.dumps(figures).replace("<", "\\u003c")
    page = resources.files(__package__).joinpath(_PAGE).read_text(encoding="utf-8")
    return page.replace("FIGURES", text)
