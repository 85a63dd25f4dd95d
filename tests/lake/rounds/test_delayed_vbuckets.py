"""Vbuckets that move and bring no rows: how long they wait, and that a real round has them."""

from dataclasses import replace
from pathlib import Path

import pytest

from dcp.lake.rounds.delayed_vbuckets import LONGEST_WAIT_SECONDS, DelayedVbuckets
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import RoundsInProcess, settings_for

EMPTY = VbucketReport(7, Outcome.REACHED, 0, 0, 0, 5, 5, 5)


def wait_seconds(empty: DelayedVbuckets) -> int:
    """Return for how many whole seconds vbucket 7 waits at second 100."""
    return sum(7 in empty.delayed(100.0 + second) for second in range(120))


def test_each_round_without_rows_doubles_the_wait_up_to_a_bound() -> None:
    empty, waits = DelayedVbuckets(1.0), []
    for _ in range(70):
        empty.learn([EMPTY], 100.0)
        waits.append(wait_seconds(empty))
    assert waits[:6] == [0, 1, 3, 7, 15, int(LONGEST_WAIT_SECONDS)]
    assert set(waits[6:]) == {int(LONGEST_WAIT_SECONDS)}


@pytest.mark.parametrize(
    "report",
    [
        replace(EMPTY, rows=1),
        replace(EMPTY, outcome=Outcome.BUDGET),
        replace(EMPTY, outcome=Outcome.ROLLBACK),
        replace(EMPTY, outcome=Outcome.STOPPED),
    ],
)
def test_rows_or_a_stream_that_is_not_done_end_the_wait(report: VbucketReport) -> None:
    empty = DelayedVbuckets(1.0)
    for _ in range(5):
        empty.learn([EMPTY, replace(EMPTY, vbucket=8)], 100.0)
    empty.learn([report], 100.0)
    assert empty.delayed(100.0) == {8}


def test_a_round_of_documents_that_are_left_out_counts_as_empty(tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(vbuckets=1, seed=1)) as cluster:
        cluster.set(b"first", b"{}")
        filters = {"exclude_keys": "left-out"}
        rounds = RoundsInProcess(settings_for(cluster, tmp_path, filter=filters))
        rounds.run()
        cluster.set(b"left-out", b"{}")
        rows = rounds.run()
    reports = [
        VbucketReport.parse(row["vbucket"], row["detail"])
        for row in rows
        if row["kind"] == "status"
    ]
    empty = DelayedVbuckets(1.0)
    for _ in range(2):
        empty.learn(reports, 100.0)
    assert empty.delayed(100.0) == {0}, reports
