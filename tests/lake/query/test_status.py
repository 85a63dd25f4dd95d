"""The words of a lake's status."""

from dataclasses import replace

from dcp.lake.query.status import LakeStatus
from dcp.lake.tables.round_record import Outcome, VbucketReport


def test_vbuckets_that_wait_for_the_same_thing_are_told_in_one_line() -> None:
    """In a first load most vbuckets wait for their turn."""
    detail = "a:1 reads its disk for other vbuckets first"
    waits = VbucketReport(
        0, Outcome.BUDGET, 0, 0, 0, 0, 0, 9, reason="waiting for its turn", detail=detail
    )
    stuck = [replace(waits, vbucket=vbucket) for vbucket in range(1, 900)]
    for number in (900, 902):
        told = f"a:1 sent nothing of it for 30.{number} s"
        stuck.append(replace(waits, vbucket=number, reason="waiting for data", detail=told))
    status = LakeStatus(
        bucket="bucket",
        lake_id="id",
        vbuckets=1024,
        round=1,
        waiting=(7,),
        stuck=tuple(stuck),
        rollbacks=0,
        replicas=(),
        place="/lake",
        documents={},
        undecodable_values={},
    )
    lines = str(status).splitlines()
    assert lines[1:] == [
        "  waiting for their snapshot's end: 1 vbuckets",
        f"  stand still: vbuckets 1-899: waiting for its turn (1: {detail})",
        "  stand still: vbuckets 900, 902: waiting for data "
        "(900: a:1 sent nothing of it for 30.900 s)",
    ]
    shown = status.to_json()
    assert shown["waiting_for_snapshot_end"] == [7]
    assert (shown["stuck"][0]["vbucket"], shown["stuck"][0]["target_seqno"]) == (1, 9)
