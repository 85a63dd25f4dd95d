"""The page of the metrics and the dashboard name what is exported, and all of it."""

import json
import re
from pathlib import Path

from dcp.lake.observe.lake_metrics import LAKE_METRICS

ROOT = Path(__file__).parents[3]


def test_the_page_lists_each_metric_with_its_type_and_meaning() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(
        r"^\| `(dcplake_\w+)` \| (\w+) \| (?:`\w+`)? ?\| (.+) \|$", page, re.MULTILINE
    )
    listed = [(name, (kind, meaning)) for name, kind, meaning in rows]
    assert listed == list(LAKE_METRICS.items())


def test_each_query_of_the_dashboard_names_a_metric_that_is_exported() -> None:
    dashboard = json.loads((ROOT / "conf" / "grafana.json").read_text())
    queries = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    named = [re.findall(r"\b[a-z]\w*_\w+", query) for query in queries]
    assert all(len(names) == 1 for names in named), named
    assert {name for names in named for name in names} == LAKE_METRICS.keys()
