"""Makes the page of a lake: lag, rounds, rollbacks, tables; live, or as a file with its figures.

``page.html`` loads nothing: where it has no figures in it, it asks for ``figures.json`` beside it.
"""

import json
from datetime import datetime
from importlib import resources
from typing import Any, Final

from dcp.lake.monitor.figures import LakeFigures
from dcp.lake.monitor.run_watch import Health

_PAGE: Final = "page.html"


def figures_json(lake: LakeFigures, at: datetime, health: Health | None = None) -> dict[str, Any]:
    """Return the page's figures as a JSON object; times are ISO 8601, in UTC."""
    return {
        "at": at.isoformat(),
        "bucket": lake.bucket,
        "lake": lake.lake_id,
        "vbuckets": lake.vbuckets,
        "round": lake.round,
        "health": None if health is None else health.to_json(),
        "rollbacks": lake.rollbacks,
        "waiting": lake.waiting,
        "stuck": [
            {"vbucket": each.vbucket, "reason": each.reason, "detail": each.detail}
            for each in lake.stuck
        ],
        "replicas": [
            {
                "table": each.table,
                "round": each.round,
                "lag_seqnos": each.lag_seqnos(lake.highs),
                "lag_seconds": 0.0
                if each.behind_since is None
                else max(0.0, (at - each.behind_since).total_seconds()),
                "applied_at": each.applied_at and each.applied_at.isoformat(),
                "stale": len(each.stale),
            }
            for each in lake.replicas
        ],
        "tables": [
            {
                "table": each.table,
                "version": each.version,
                "bytes": each.size.bytes,
                "files": each.size.files,
            }
            for each in lake.tables
        ],
        "rounds": [
            {
                "round": each.round,
                "time": each.time and each.time.isoformat(),
                "rows": each.rows,
                "bytes": each.bytes,
                "vbuckets": each.vbuckets,
                "rollbacks": each.rollbacks,
                "window_full": dict(each.window_full),
            }
            for each in lake.rounds
        ],
    }


def page_html(figures: dict[str, Any] | None = None) -> str:
    text = "null" if figures is None else json.dumps(figures).replace("<", "\\u003c")
    page = resources.files(__package__).joinpath(_PAGE).read_text(encoding="utf-8")
    return page.replace("FIGURES", text)
