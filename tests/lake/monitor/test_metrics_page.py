"""The pages of metrics and alarms, the dashboard and the alerting rules name what is exported."""

import json
import re
from pathlib import Path

from dcp.client.consumer_events import StopReason
from dcp.lake.monitor.lake_figures import LakeFigures
from dcp.lake.tables.round_record import StuckReason
from dcp.relay_figures import RelayFigures

ROOT = Path(__file__).parents[3]
BASE = "https://dcplake.example.com/"
"""The address of the site until an operator sets the own one."""


def test_the_page_lists_each_metric_with_its_type_label_and_meaning() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(
        r"^\| `(dcplake_\w+)` \| (\w+) \| (?:`(\w+)`)? ?\| (.+) \|$", page, re.MULTILINE
    )
    assert rows == [
        (each.name, each.type, "".join(re.findall(r"\[(\w+)", each.path)), each.help)
        for each in LakeFigures.metrics
    ]


def test_each_query_of_the_dashboard_names_a_metric_that_is_exported() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    queries = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    named = [re.findall(r"\b[a-z]\w*_\w+", query) for query in queries]
    assert all(len(names) == 1 for names in named), named
    assert {name for names in named for name in names} <= {
        each.name for each in LakeFigures.metrics
    }


def test_each_alerting_rule_is_about_exported_metrics_and_links_to_its_section() -> None:
    rules = (ROOT / "deploy" / "alerts.yml").read_text()
    page = (ROOT / "docs" / "howto" / "alarms.md").read_text()
    found = re.findall(
        r"- alert: (\w+)\n +expr: (.+)\n(?: +for: \w+\n)? +labels: \{ severity: \w+ \}\n"
        r" +annotations:\n +summary: .*(?:Bucket {{ \$labels.bucket }}, lake {{ \$labels.lake }}"
        r"|Relay {{ \$labels.instance }}): .+\n"
        r" +runbook_url: (.+)\n",
        rules,
    )
    for text in (rules, page):
        assert f"sed -i 's|{BASE}|https://docs.my.company/dcplake/|' alerts.yml" in text
    assert len(found) == rules.count("- alert:")
    exported = {each.name for each in (*LakeFigures.metrics, *RelayFigures.metrics)}
    for name, query, link in found:
        named = set(re.findall(r"\b[a-z]\w*_\w+", query)) - {"present_over_time"}
        assert named and named <= exported, query
        assert link == f"{BASE}docs/howto/alarms.html#{name.lower()}", "whoever is paged follows it"
    assert [name for name, _, _ in found] == re.findall(r"^## (\w+)$", page, re.MULTILINE)
    sections = re.split(r"^## .*$", page, flags=re.MULTILINE)[1:]
    assert all("**Look at**" in each and "**Do**" in each for each in sections)


def test_the_page_of_alarms_lists_each_reason_of_a_stuck_vbucket() -> None:
    page = (ROOT / "docs" / "howto" / "alarms.md").read_text()
    _, _, rows = page.partition("| `reason` | meaning | what to do |\n")
    listed = re.findall(r"^\| (`.+?) \| ", rows.partition("\n\n")[0], re.MULTILINE)
    of_runs = {StuckReason.NO_PROGRESS, StuckReason.NODE_CONTRADICTS_ITSELF, StuckReason.STALE}
    of_other_readers = {StuckReason.DELETIONS_PURGED, StopReason.FINISHED, StopReason.CLOSED}
    reasons = {*StuckReason, *StopReason} - of_runs - of_other_readers
    assert sorted(re.findall("`(.+?)`", " ".join(listed))) == sorted(reasons)
