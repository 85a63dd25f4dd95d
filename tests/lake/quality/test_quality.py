"""The quality suite on real tables: every kind of violation planted is named, sound rows pass."""

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dcp.errors import ConfigError, LakeError, QualityError
from dcp.lake.quality.check import (
    RowsToCheck,
    check_replica,
    check_version,
    checked_sql,
    complete_positions,
    unchanged_seqnos,
)
from dcp.lake.quality.report import PassedCheck
from dcp.lake.quality.suite import QualitySuite, Subject, load_suite
from dcp.lake.query.plain_names import name_tables
from dcp.lake.receive.keys import key_string
from dcp.lake.tables.applied_version import AppliedVersion, StaleVbucket
from dcp.lake.tables.lake_tables import DOCS, LakeTables
from dcp.lake.tables.round_record import states_to_batch
from dcp.lake.tables.schema import CHANGES, REPLICA, spark_ddl
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.protocol.position import Position
from dcp.types import vbucket_of
from jobs.quality import main as quality_job
from tests.lake.conftest import NewLake
from tests.lake.log_model import apply_pending, commit_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

VBUCKETS = 64
COMPLETE_SEQNO = 2**64 - 10
CAS = 1_700_000_000_123_456_789
NOT_JSON = [
    b"",
    b" ",
    b"{}x",
    b"{}] x",
    b"{},0] x",
    b"1,2",
    b"],[",
    b'{"a":1}{"b":2}',
    b"{'a':1}",
    b"{a:1}",
    b"[1,]",
    b'{"a":1',
    b"NaN",
    b"[-Infinity]",
    b"nul",
    b"01",
    b'"a\x01b"',
    b'"\xff"',
    b"// no\n1",
]
JSON = [
    b"{}",
    b'  {"a": [1, {"b": null}]}\n',
    b"1",
    b'"text"',
    b"null",
    b'{"a":1,"a":2}',
    b"1e400",
    b"12345678901234567890123",
    '"ü€😀"'.encode(),
    b'"\\ud800"',
]
KEYS = [b"plain", b"", b"\x00", b"\xff\xfe", b"\\x41", "schlüssel".encode(), b"k" * 250]


def row(key: bytes, **different: Any) -> dict[str, Any]:
    """A sound row of a replica, but for what is given."""
    text = key_string(key)
    sound = {
        "vbucket": vbucket_of(key, VBUCKETS),
        "key": text,
        "key_bytes": key if text.startswith("\\x") else None,
        "seqno": Decimal(COMPLETE_SEQNO),
        "vb_uuid": Decimal(2**64 - 1),
        "epoch": 0,
        "cas": Decimal(CAS),
        "rev": Decimal(1),
        "flags": 0,
        "expiry": 0,
        "datatype": 1,
        "xattrs": '{"_sync": {"rev": 1}}',
        "value": b'{"a": 1}',
    }
    changed: dict[str, Any] = sound | different
    return {"modified_at": time_in(changed["cas"]), **changed}


def time_in(cas: Decimal | None) -> datetime | None:
    """The time in a CAS: its upper 48 bits, in nanoseconds."""
    if cas is None:
        return None
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=(int(cas) >> 16 << 16) // 1000)


def sound_rows() -> list[dict[str, Any]]:
    return [
        *(row(key) for key in KEYS),
        *(row(b"json %d" % number, value=value) for number, value in enumerate(JSON)),
        *(
            row(b"raw %d" % number, value=value, datatype=0)
            for number, value in enumerate(NOT_JSON)
        ),
        row(b"without xattrs", xattrs=None),
        row(b"most of each", flags=2**32 - 1, expiry=2**32 - 1, rev=Decimal(2**64 - 1)),
        row(b"oldest CAS", cas=Decimal(1)),
    ]


# By key: what is wrong with the row, and the expectations that must name it.
PLANTED: Mapping[bytes, tuple[Mapping[str, Any], set[str]]] = {
    b"elsewhere": (
        {"vbucket": (vbucket_of(b"elsewhere", VBUCKETS) + 1) % VBUCKETS},
        {"key_in_its_vbucket"},
    ),
    b"beyond": ({"seqno": Decimal(COMPLETE_SEQNO + 1)}, {"within_complete_seqno"}),
    b"high vbucket": (
        {"vbucket": VBUCKETS},
        {"vbucket_in_range", "key_in_its_vbucket", "within_complete_seqno"},
    ),
    b"low vbucket": (
        {"vbucket": -1},
        {"vbucket_in_range", "key_in_its_vbucket", "within_complete_seqno"},
    ),
    b"no vbucket": (
        {"vbucket": None},
        {"vbucket_present", "vbucket_in_range", "key_in_its_vbucket", "within_complete_seqno"},
    ),
    b"seqno 0": ({"seqno": Decimal(0)}, {"seqno_positive"}),
    b"no seqno": ({"seqno": None}, {"seqno_present", "within_complete_seqno"}),
    b"cas 0": ({"cas": Decimal(0)}, {"cas_positive"}),
    b"no cas": ({"cas": None}, {"cas_present", "modified_at_of_cas", "modified_at_plausible"}),
    b"rev 0": ({"rev": Decimal(0)}, {"rev_positive"}),
    b"no rev": ({"rev": None}, {"rev_positive"}),
    b"flags below": ({"flags": -1}, {"flags_in_range"}),
    b"flags above": ({"flags": 2**32}, {"flags_in_range"}),
    b"no flags": ({"flags": None}, {"flags_in_range"}),
    b"expiry below": ({"expiry": -1}, {"expiry_in_range"}),
    b"expiry above": ({"expiry": 2**32}, {"expiry_in_range"}),
    b"no expiry": ({"expiry": None}, {"expiry_in_range"}),
    b"another time": ({"modified_at": datetime(2024, 5, 1, tzinfo=UTC)}, {"modified_at_of_cas"}),
    b"before 1970": (
        {"modified_at": datetime(1969, 12, 31, tzinfo=UTC)},
        {"modified_at_of_cas", "modified_at_plausible"},
    ),
    b"CAS of the future": ({"cas": Decimal(2**64 - 1)}, {"modified_at_plausible"}),
    b"no uuid": ({"vb_uuid": None}, {"vb_uuid_present"}),
    b"no epoch": ({"epoch": None}, {"epoch_present"}),
    b"no datatype": ({"datatype": None}, {"datatype_present"}),
    b"no value": ({"value": None}, {"value_present", "document_parses"}),
    b"snappy": ({"datatype": 2}, {"datatype_known"}),
    b"xattrs": ({"xattrs": "[1]"}, {"xattrs_parse"}),
    b"\xfe": ({"key_bytes": None}, {"key_escaped_where_needed", "key_in_its_vbucket"}),
    **{
        b"not json %d" % number: ({"value": value}, {"document_parses"})
        for number, value in enumerate(NOT_JSON)
    },
}


def version_of(spark: "SparkSession", rows: list[dict[str, Any]]) -> RowsToCheck:
    """Rows as a replica version whose vbuckets are all complete up to `COMPLETE_SEQNO`."""
    ordered = [tuple(each[name] for name in REPLICA.names) for each in rows]
    spark.createDataFrame(ordered, spark_ddl(REPLICA)).createOrReplaceTempView("planted")
    return RowsToCheck(
        current=AppliedVersion("planted", 0, 0, 1, 1),
        table_id="",
        vbucket_count=VBUCKETS,
        rows_sql="SELECT * FROM planted",
        complete=dict.fromkeys(range(VBUCKETS), COMPLETE_SEQNO),
    )


def test_every_planted_violation_is_named_and_no_sound_row_quietly(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    connect = socket.socket.connect

    def refuse_strangers(self: socket.socket, address: Any) -> None:
        local = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost")
        assert local, f"a connection to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", refuse_strangers)
    planted = [row(key, **different) for key, (different, _) in PLANTED.items()]
    twice = [row(b"twice"), row(b"twice", seqno=Decimal(1))]
    without_key = row(b"without key") | {"key": None}
    rows = [*sound_rows(), *planted, *twice, without_key]
    small = replace(version_of(spark, rows), row_bytes=1000.0)
    report = check_version(spark, small, load_suite())
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")
    assert report.check.checked_rows == len(rows)

    of_rows = load_suite().about(Subject.ROWS)
    expected: dict[str, set[str | None]] = {spec.name: set() for spec in of_rows}
    for key, (_, names) in PLANTED.items():
        for name in names:
            expected[name].add(key_string(key))
    for name in ("key_present", "key_escaped_where_needed", "key_in_its_vbucket"):
        expected[name].add(None)
    expected["vbucket_and_key_unique"] = {"twice"}

    for result in report.results:
        keys = expected[result.expectation]
        count = 2 if result.expectation == "vbucket_and_key_unique" else len(keys)
        assert result.unexpected_count == count, result
        shown = {sample.key for sample in result.samples}
        assert shown <= keys, result
        assert len(result.samples) == min(count, 5), result
    assert all(expected.values()), "an expectation that no planted row breaks"

    assert "key_in_its_vbucket: 6 rows against" in str(report)
    exact = next(each for each in report.results if each.expectation == "seqno_present")
    assert exact.samples[0].seqno is None
    beyond = json.dumps(report.to_json())
    assert str(COMPLETE_SEQNO + 1) in beyond


def test_a_document_of_more_bytes_than_a_json_parser_takes_by_itself_parses(
    spark: "SparkSession",
) -> None:
    suite = load_suite()
    [parses] = [each for each in suite.expectations if each.name == "document_parses"]
    large = row(b"large", value=b'{"a":"' + b"x" * 21_000_000 + b'"}')
    alone = QualitySuite("alone", suite.columns, (parses,))
    assert not check_version(spark, version_of(spark, [large]), alone).failed


def test_expectation_that_cannot_be_computed_never_counts_as_held(spark: "SparkSession") -> None:
    suite = load_suite()
    foreign = replace(suite.expectations[0], kwargs={"column": "no_such_column"})
    of_all = replace(
        suite.expectations[0],
        name="row_count",
        type="expect_table_row_count_to_equal",
        kwargs={"value": 10},
    )
    report = check_version(
        spark,
        version_of(spark, [row(b"a")]),
        replace(suite, expectations=(foreign, suite.expectations[1], of_all)),
    )
    assert [each.success for each in report.results] == [False, True, False]
    assert str(report.results[2]).startswith("FAIL  row_count: found 1, against: ")
    assert "no_such_column" in str(report.results[0].exception_message)
    assert "could not be checked" in str(report)


def test_a_time_that_was_seen_is_told_in_utc(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = load_suite()
    newest = replace(
        suite.expectations[0],
        name="newest",
        type="expect_column_max_to_be_between",
        kwargs={"column": "modified_at", "max_value": "2000-01-01 00:00:00"},
    )
    with monkeypatch.context() as far_away:
        far_away.setenv("TZ", "America/New_York")
        time.tzset()
        report = check_version(
            spark, version_of(spark, [row(b"a")]), replace(suite, expectations=(newest,))
        )
    time.tzset()
    assert report.results[0].observed_value == row(b"a")["modified_at"].isoformat()


def test_column_of_a_suite_that_is_no_sql_is_named(spark: "SparkSession") -> None:
    suite = load_suite()
    broken = QualitySuite("mine", {"odd": "no_such_column > 1"}, suite.expectations[:1])
    with pytest.raises(
        ConfigError, match=r"suite 'mine': meta.columns: 'odd': found 'no_such.*, exp"
    ):
        check_version(spark, version_of(spark, [row(b"a")]), broken)
    number = QualitySuite("mine", {"odd": "rev + 1"}, suite.expectations[:1])
    with pytest.raises(ConfigError, match=r"found 'rev \+ 1', a \S+, expected what is true or"):
        check_version(spark, version_of(spark, [row(b"a")]), number)


def test_rows_that_are_no_replica_are_refused(spark: "SparkSession") -> None:
    other = replace(version_of(spark, []), rows_sql="SELECT 1 AS id")
    with pytest.raises(LakeError, match=r"found columns id; expected vbucket, key, .* too"):
        check_version(spark, other, load_suite())


def commit_round(
    lake: LakeTables, number: int, documents: Mapping[bytes, int], flags: int = 0
) -> None:
    """Append a round that brings ``documents`` (key to seqno), complete in every vbucket."""
    count = lake.identity.vbucket_count
    mutations = [
        {
            "round": number,
            "epoch": 0,
            "vbucket": vbucket_of(key, count),
            "kind": "mutation",
            "seqno": seqno,
            "vb_uuid": 7,
            "collection_id": 0,
            "key": key.decode(),
            "cas": CAS + seqno,
            "rev": 1,
            "flags": flags,
            "expiry": 0,
            "datatype": 1,
            "value": b"{}",
        }
        for key, seqno in documents.items()
    ]
    highest = max(documents.values())
    position = Position(7, highest, highest, highest, highest)
    states = [
        LakeVbucketState.beginning(vbucket).advanced(number, position, brought_rows=True)
        for vbucket in range(count)
    ]
    batches = [
        pa.RecordBatch.from_pylist(mutations, schema=CHANGES),
        states_to_batch(states, number),
    ]
    commit_rows(lake, pa.Table.from_batches(batches), number, "writer-1")


def test_rows_that_changed_since_a_version_are_chosen_by_their_vbuckets_positions(
    spark: "SparkSession",
) -> None:
    """Of each vbucket a row that the older version had, and one above what it had."""
    rows = [
        row(b"%d-%d" % (vb, seqno), vbucket=vb, seqno=Decimal(seqno))
        for vb in range(6)
        for seqno in (5, 2**63 + 6)
    ]
    highest = 2**63 + 9
    # 0 went on, 1 has a new epoch, 2 went back, 3 was not known, 4 is not known any more, 5 stayed.
    now = {0: (0, highest), 1: (1, highest), 2: (0, 4), 3: (0, highest), 5: (0, highest)}
    then = {0: (0, 2**63 + 5), 1: (0, 9), 2: (0, highest), 4: (0, highest), 5: (0, highest)}
    version = replace(
        version_of(spark, rows),
        complete={vbucket: seqno for vbucket, (_, seqno) in now.items()},
        since=PassedCheck(3, 1, 10),
        unchanged=unchanged_seqnos(now, then),
    )
    chosen = {each["key"] for each in spark.sql(checked_sql(version)).collect()}
    whole = {f"{vb}-{seqno}" for vb in (1, 2, 3, 4) for seqno in (5, 2**63 + 6)}
    assert chosen == {f"0-{2**63 + 6}"} | whole


def test_a_job_checks_what_changed_since_a_version_that_passed(
    new_lake: NewLake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = new_lake(4)
    config, pages = tmp_path / "quality.toml", tmp_path / "pages" / "new"
    config.write_text(f"[lake]\nroot = {json.dumps(lake.location.root)}\n")
    suite = part_of_the_suite(tmp_path, "rev_positive", "flags_in_range", "rows_kept")

    def check(*options: str) -> tuple[int, dict[str, Any]]:
        words = ["--config", str(config), "--suite", str(suite), "--json", *options]
        code = quality_job(words)
        return code, json.loads(capsys.readouterr().out)

    commit_round(lake, 1, {b"a": 1, b"b": 2, b"c": 3, b"d": 4})
    apply_pending(lake, [DOCS], 1, "writer-1")
    # Received but not applied: the replica is still measured by round 1.
    commit_round(lake, 2, {b"a": 9})
    code, first = check()
    assert (code, first["round"]) == (0, 1)
    assert (first["scope"], first["checked_rows"], first["table_rows"]) == ("whole table", 4, 4)

    apply_pending(lake, [DOCS], 2, "writer-1")
    code, second = check()
    assert (code, second["scope"], second["since_version"]) == (0, "changed rows", first["version"])
    assert (second["checked_rows"], second["table_rows"]) == (1, 4)

    commit_round(lake, 3, {b"a": 10}, flags=-1)
    apply_pending(lake, [DOCS], 3, "writer-1")
    # Somebody else takes most rows away, and changes one that is not of the new round.
    docs = lake.table_sql("docs")
    lake.spark.sql(f"DELETE FROM {docs} WHERE key IN ('c', 'd')").collect()
    lake.spark.sql(f"UPDATE {docs} SET rev = 0 WHERE key = 'b'").collect()
    code, third = check()
    assert (code, third["since_version"]) == (QualityError.exit_code, second["version"])
    assert (third["checked_rows"], third["table_rows"]) == (1, 2)
    held = {each["expectation"]: each["success"] for each in third["results"]}
    assert held == {"rev_positive": True, "flags_in_range": False, "rows_kept": True}, (
        "half of them"
    )

    code, whole = check("--whole-table", "--data-docs", str(pages))
    assert (code, whole["checked_rows"], whole["success"]) == (QualityError.exit_code, 2, False)
    [page] = pages.iterdir()
    assert page.name == f"docs-{whole['version']}.html"
    assert "rev_positive: every row has a revision" in page.read_text("utf-8")

    # What failed is looked at until it holds; and a warning fails nothing.
    lake.spark.sql(f"DELETE FROM {docs}").collect()
    code, fourth = check()
    assert (code, fourth["table_rows"], fourth["success"]) == (0, 0, True)
    assert fourth["since_version"] == second["version"]
    [warning] = [each for each in fourth["results"] if not each["success"]]
    assert (warning["expectation"], warning["observed_value"]) == (
        "rows_kept",
        "rows_change_percent -100.0",
    )

    name_tables(lake, [DOCS])
    kept = lake.spark.sql(
        "SELECT expectation, unexpected_count, samples FROM quality WHERE NOT success"
    ).collect()
    samples = {each["expectation"]: each["samples"] for each in kept}
    assert [tuple(each) for each in samples["rev_positive"]] == [(vbucket_of(b"b", 4), "b", 2)]
    assert sorted((each["expectation"], each["unexpected_count"]) for each in kept) == [
        ("flags_in_range", 1),
        ("flags_in_range", 1),
        ("rev_positive", 1),
        ("rows_kept", None),
    ]


def part_of_the_suite(folder: Path, *names: str) -> Path:
    """Write a suite of some of the expectations alone."""
    suite = json.loads((files("dcp.schemas") / "replica_suite.json").read_text("utf-8"))
    kept = [each for each in suite["expectations"] if each["meta"]["name"] in names]
    assert len(kept) == len(names)
    columns = {name: sql for name, sql in suite["meta"]["columns"].items() if name in names}
    path = folder / "suite.json"
    path.write_text(json.dumps(suite | {"meta": {"columns": columns}, "expectations": kept}))
    return path


def test_table_that_is_not_there_is_named(new_lake: NewLake, tmp_path: Path) -> None:
    lake = new_lake(4)
    with pytest.raises(LakeError, match=r"found no table docs__s__c") as refusal:
        check_replica(lake, "docs__s__c")
    assert str(tmp_path) in str(refusal.value)


def test_a_stale_vbucket_is_measured_at_the_round_that_it_shows(new_lake: NewLake) -> None:
    lake = new_lake(3)
    commit_round(lake, 1, {b"a": 4})
    commit_round(lake, 2, {b"a": 9})
    current = AppliedVersion("docs", 7, 1, 2, 2, (StaleVbucket(1, 1),))
    assert complete_positions(lake, current) == {0: (0, 9), 1: (0, 4), 2: (0, 9)}
    # Of a round that was cleaned there is nothing to compare with.
    current = replace(current, stale_vbuckets=(StaleVbucket(1, 0),))
    assert complete_positions(lake, current) == {0: (0, 9), 2: (0, 9)}
