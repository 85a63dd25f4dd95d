"""Values that cannot be decoded: kept as they were sent, counted, and told of wherever they show.

The source is a server that sends what it holds, whatever that is.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import pytest

from dcp.cli.displays.run_output import JsonObserver
from dcp.client.consumer_events import StopReason
from dcp.lake.config.settings import ApplyWhen
from dcp.lake.query.views import register_views
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.round_record import Outcome
from dcp.lake.task_board.board_files import read_board
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.lake.task_board.task_metrics import task_exposition
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.versions import Content, Version
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Opcode
from dcp.wire.xattr import join_xattrs
from tests.lake.figures import figures_of
from tests.lake.receiving import QUICK_ROUND, RoundsInProcess, item_rows, lake_of, settings_for

JSON, SNAPPY, XATTR, UNKNOWN = 1, 2, 4, 8
DOCUMENT: Final = b'{"a": 1, "text": "text text text text text text text text"}'
SECTION: Final = [(b"sync", b'{"rev":"1"}')]
BEYOND: Final = (1000).to_bytes(4, "big") + b"rest"
"""An xattr section that says to be longer than the value is."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A value as it is sent, and what is said of it."""

    value: bytes
    datatype: int
    reason: str
    detail: str


BROKEN: Final = {
    "no snappy": Broken(b"\xff" * 5, SNAPPY, "bad snappy", "expected an inflated length"),
    "cut snappy": Broken(deflate(DOCUMENT)[:-3], SNAPPY | JSON, "bad snappy", "cannot be inflated"),
    "empty snappy": Broken(b"\x05", SNAPPY | JSON, "bad snappy", "cannot be inflated"),
    "text": Broken(b"\x10" + DOCUMENT, SNAPPY | JSON, "bad snappy", "snappy block"),
    "bomb": Broken(
        bytes.fromhex("ffffffff0f") + b"\x00", SNAPPY, "bad snappy", "inflated length of 4294967295"
    ),
    "JSON where xattrs must be": Broken(
        DOCUMENT, XATTR | JSON, "bad xattrs", "expected at most the 55 bytes that follow"
    ),
    "xattrs beyond the value": Broken(BEYOND, XATTR, "bad xattrs", "found a length of 1000"),
    "three bytes": Broken(b"\x00\x00\x00", XATTR, "bad xattrs", "expected 4 or more"),
    "good snappy, bad xattrs": Broken(
        deflate(BEYOND), SNAPPY | XATTR, "bad snappy or xattrs", "found a length of 1000"
    ),
    "bad snappy of good xattrs": Broken(
        deflate(join_xattrs(SECTION, DOCUMENT))[:-3],
        SNAPPY | XATTR | JSON,
        "bad snappy or xattrs",
        "cannot be inflated",
    ),
    "a bit that nobody knows": Broken(DOCUMENT, UNKNOWN | JSON, "unknown datatype", "found 0x09"),
}
GOOD: Final = {
    "plain": (DOCUMENT, JSON),
    "whole": (deflate(join_xattrs(SECTION, DOCUMENT)), SNAPPY | XATTR | JSON),
}
TEXT: Final = (
    "values cannot be decoded and are as they were sent: datatype is above 1 there, "
    "row_history.detail says why"
)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerCluster]:
    def as_held(version: Version, _flavour: int) -> tuple[bytes, int]:
        return version.value, version.datatype

    monkeypatch.setattr(Version, "_value_for", as_held)
    settings = ClusterSettings(vbuckets=1, seed=3, users={"Administrator": "password"})
    with ProducerCluster(settings) as cluster:
        yield cluster


def take(cluster: ProducerCluster, key: bytes, value: bytes, datatype: int, **more: Any) -> None:
    seqno = cluster.high_seqno(0) + 1
    content = Content(value, datatype, **more)
    cluster.take_versions(
        0, [Version(0, key, content, seqno=seqno, rev=seqno, cas=(seqno + 1) << 16)]
    )


def take_all(cluster: ProducerCluster) -> None:
    for name, (value, datatype) in GOOD.items():
        take(cluster, name.encode(), value, datatype)
    for name, broken in BROKEN.items():
        take(cluster, name.encode(), broken.value, broken.datatype)


def bury_all(cluster: ProducerCluster) -> None:
    """Delete what is broken; the tombstones' values are as broken."""
    for number, (name, broken) in enumerate(BROKEN.items()):
        opcode = int((Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)[number % 2])
        take(cluster, name.encode(), broken.value, broken.datatype, opcode=opcode, delete_time=1700)


def test_they_are_kept_as_they_were_sent_and_counted(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    rounds = RoundsInProcess(settings_for(cluster, tmp_path))
    take_all(cluster)
    mutations = rounds.run()
    bury_all(cluster)
    tombstones = rounds.run()
    for rows, sound in ((mutations, set(GOOD)), (tombstones, set())):
        found = {row["key"]: row for row in item_rows(rows)}
        assert found.keys() == sound | BROKEN.keys()
        for name, broken in BROKEN.items():
            row = found[name]
            assert (row["value"], row["datatype"]) == (broken.value, broken.datatype), name
            assert row["xattrs"] is None
            assert broken.detail in row["detail"]
        for name in sound:
            row = found[name]
            assert (row["value"], row["datatype"], row["detail"]) == (DOCUMENT, JSON, None)
        [status] = [json.loads(row["detail"]) for row in rows if row["kind"] == "status"]
        assert status["undecodable_values"] == len(BROKEN)


def test_a_running_task_tells_how_many(cluster: ProducerCluster, tmp_path: Path) -> None:
    take_all(cluster)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path))
    board = BoardFolder("lake", str(tmp_path))
    rounds.access = replace(rounds.access, board=board)
    plan = rounds.plan()
    assert plan is not None
    [task] = plan.tasks
    batches = rounds.receiver(plan, task).batches()
    next(batches)  # the task goes on when the next one is asked for
    end = monotonic() + 90
    while not (samples := read_board(board)):
        assert monotonic() < end, "the task shows nothing"
        sleep(0.05)
    assert samples[0].undecodable_values == len(BROKEN)
    assert samples[0].to_json()["undecodable_values"] == len(BROKEN)
    line = f'dcplake_task_undecodable_values{{task="{samples[0].label}"}} {len(BROKEN)}.0\n'
    assert line in task_exposition(samples)
    rounds.keep(plan, list(batches))


@pytest.mark.parametrize(
    ("key", "collection", "expected"),
    [(b"", 0, "1 to 250"), (b"k" * 251, 0, "1 to 250"), (b"k" * 247, 8, "1 to 246")],
)
def test_a_key_that_no_server_stores_is_a_violation_and_nothing_of_it_is_kept(
    cluster: ProducerCluster, tmp_path: Path, key: bytes, collection: int, expected: str
) -> None:
    if collection:
        assert cluster.create_collection("_default", "c") == collection
    take(cluster, b"good", DOCUMENT, JSON)
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, round=QUICK_ROUND))
    rounds.run()
    seqno = cluster.high_seqno(0) + 1
    version = Version(
        0, key, Content(b"{}", JSON), seqno=seqno, rev=1, cas=1 << 16, collection=collection
    )
    cluster.take_versions(0, [version])
    found = rounds.run()
    assert item_rows(found) == []
    [status] = [json.loads(row["detail"]) for row in found if row["kind"] == "status"]
    assert status["outcome"] == str(Outcome.STOPPED)
    assert status["reason"] == str(StopReason.PROTOCOL_ERROR)
    assert "vbucket 0" in status["detail"]
    assert f"at seqno {seqno} a key of {len(key)} bytes, expected {expected}" in status["detail"]


def rows(lake: LakeTables, view: str) -> dict[str, dict[str, Any]]:
    """Return what a view or table shows, by key; of ``document``, perhaps a VARIANT, if it is."""
    all_rows = lake.spark.sql(f"SELECT * FROM {view}")
    if "document" in all_rows.columns:
        all_rows = all_rows.selectExpr("* EXCEPT (document)", "document IS NOT NULL AS document")
    return {row["key"]: row for row in all_rows.toArrow().to_pylist()}


def require_said(found: dict[str, dict[str, Any]]) -> None:
    """Every row says by its own columns that its value is as it was sent, and no other does."""
    assert found.keys() == GOOD.keys() | BROKEN.keys()
    for name, row in found.items():
        assert (row["datatype"] > 1) == (name in BROKEN)
        value, datatype = (
            (BROKEN[name].value, BROKEN[name].datatype) if name in BROKEN else (DOCUMENT, JSON)
        )
        assert (row["value"], row["datatype"]) == (value, datatype)
        assert (row["xattrs"] is None) == (name != "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("lakes_in_memory")
def test_everything_that_shows_them_says_so(
    view: Callable[[LakeTables], None],
    cluster: ProducerCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = len(BROKEN)
    settings = settings_for(cluster, tmp_path, apply={"when": "never"})
    take_all(cluster)
    [report] = run(settings, once=True, observer=JsonObserver()).rounds
    assert report.undecodable_values == count
    assert f"  {count} {TEXT}" in str(report)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [committed] = [each for each in told if each["event"] == "committed"]
    assert committed["undecodable_values"] == count
    assert [each["undecodable_values"] for each in committed["vbuckets"]] == [count]

    lake = lake_of(settings)
    view(lake)
    register_views(lake)
    require_said(rows(lake, "pending_changes"))
    require_said(rows(lake, "docs_live"))
    applied = replace(settings, apply=replace(settings.apply, when=ApplyWhen.EVERY_ROUND))
    run(applied, once=True)
    require_said(rows(lake, lake.table_sql("docs")))
    require_said(rows(lake, "docs_live"))
    history = rows(lake, "row_history")
    require_said(history)
    for documents in ("documents", "documents_variant"):
        shown = rows(lake, documents)
        require_said(shown)
        for name, row in shown.items():
            broken = BROKEN.get(name)
            assert row["document"] == (broken is None), (documents, name)
            assert row["document_null_reason"] == (broken and broken.reason)
    for name, row in history.items():
        broken = BROKEN.get(name)
        assert (row["detail"] is None) == (broken is None)
        assert broken is None or broken.detail in row["detail"]
    status = figures_of(lake)
    assert [(each.table, each.undecodable_values) for each in status.replicas] == [("docs", count)]
    assert [each["undecodable_values"] for each in status.to_json()["replicas"]] == [count]
    assert f"    {count} {TEXT}" in str(status)

    for name in list(BROKEN)[1:]:  # what the source mends is mended here
        take(cluster, name.encode(), DOCUMENT, JSON)
    take(cluster, b"plain", b"\xff" * 5, SNAPPY, opcode=int(Opcode.DCP_DELETION))
    [report] = run(applied, once=True).rounds
    assert report.undecodable_values == 1
    status = figures_of(lake)
    [docs] = status.replicas
    assert (docs.documents, docs.undecodable_values) == (count + 1, 1)
    assert f"    1 {TEXT}" in str(status)
