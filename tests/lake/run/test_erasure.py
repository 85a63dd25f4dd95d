"""``dcplake erase``: documents go with all their versions, and rollbacks stay exact."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dcp.errors import ConfigError, FencedError, IncompleteRunError, LakeError
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.change_log.erase_request import Erasure, key_hash
from dcp.lake.change_log.stop_points import STEPS
from dcp.lake.config.settings import ApplySettings, Settings
from dcp.lake.config.table_names import AUDIT_TABLE, QUALITY_TABLE
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.run.driver import Driver
from dcp.lake.run.erase_command import ask_erasure, check_erased, erasure_from_file
from dcp.lake.run.replicate import apply_pending, run
from dcp.lake.tables.lake_tables import DOCS, ensure_ledger
from dcp.lake.tables.schema import QUALITY
from dcp.lake.verify.compare import verify
from dcp.producer.cluster import CollectionName, ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.manifest import DEFAULT_ID
from dcp.threads import in_thread
from tests.client.drained import wait_for
from tests.lake.figures import figures_of
from tests.lake.receive.test_private_values import require_nowhere
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import source_rows, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VBUCKETS = 4
COLLECTION = "_default._default"
QUICK = {"quiet_seconds": 0.2}
ERASE_STEPS = [step for step in STEPS if step.startswith("erase.")]


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    """A bucket of 20 documents on one node."""
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=9)) as cluster:
        write_documents(cluster, 20)
        yield cluster


@pytest.fixture
def settings(cluster: ProducerCluster, tmp_path: Path) -> Settings:
    return settings_for(cluster, tmp_path, round=QUICK)


@pytest.fixture
def replicated() -> Iterator[ProducerCluster]:
    """A bucket of 200 documents on two nodes, each with the replicas of the other."""
    settings = ClusterSettings(nodes=2, vbuckets=VBUCKETS, replicas=1, seed=9)
    with ProducerCluster(settings) as cluster:
        write_documents(cluster, 200)
        cluster.wait_until_replicated()
        yield cluster


def write_documents(
    cluster: ProducerCluster, count: int, collection: CollectionName = DEFAULT_ID
) -> None:
    for number in range(count):
        cluster.set(b"key-%d" % number, b'{"n": %d}' % number, collection=collection)


def erasure(*keys: str, keeps_out: bool = False) -> Erasure:
    return Erasure(COLLECTION, frozenset(map(key_hash, keys)), keeps_out)


def high(cluster: ProducerCluster) -> dict[int, int]:
    return {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}


def answer(settings: Settings, request: ControlRequest | None) -> ControlRequest:
    assert request is not None
    return Control(lake_of(settings)).request(request.id)


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_document_goes_with_all_its_versions(
    cluster: ProducerCluster, settings: Settings
) -> None:
    run(settings, once=True)
    cluster.set(b"key-7", b'{"n": "again"}')
    run(settings, once=True)
    with pytest.raises(ConfigError, match=r"found 1 of the documents at the source"):
        ask_erasure(settings, erasure("key-7", "nobody"))
    cluster.delete(b"key-7")
    run(settings, once=True)
    with pytest.raises(IncompleteRunError, match=r"docs: .*"):
        check_erased(settings, erasure("key-7")).refuse_found()

    documents, request = ask_erasure(settings, erasure("key-7", "nobody"))
    assert documents.rows == {"changes": 3, "docs": 0}
    assert documents.lost_versions["docs"] == 3
    assert check_erased(settings, erasure("key-7")).found, "nothing is done yet"
    run(settings, once=True)
    done = answer(settings, request)
    assert (done.state, done.detail.partition(";")[0]) == (
        RequestState.DONE,
        "rows, by this attempt: 0 in docs, 3 in changes",
    )
    assert not check_erased(settings, erasure("key-7")).found
    assert check_erased(settings, erasure("key-8")).found
    assert table_rows(lake_of(settings), None) == source_rows(cluster, high(cluster))
    assert figures_of(lake_of(settings)).warnings == ()

    # The lake goes on, and a new document of that key lands.
    cluster.set(b"key-7", b'{"n": "new"}')
    run(settings, once=True)
    assert table_rows(lake_of(settings), None) == source_rows(cluster, high(cluster))


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_rollback_across_an_erasure_reads_its_vbucket_anew(
    replicated: ProducerCluster, tmp_path: Path
) -> None:
    settings = settings_for(replicated, tmp_path, round=QUICK)
    run(settings, once=True)
    vbucket = replicated.vbucket_of(b"key-7")
    replicated.pause_replication()
    replicated.delete(b"key-7")
    run(settings, once=True)
    _, request = ask_erasure(settings, erasure("key-7"))
    run(settings, once=True)
    assert answer(settings, request).state is RequestState.DONE

    # The failover loses the deletion: the document is there again.
    replicated.failover(replicated.vbucket_owner(vbucket))
    run(settings, once=True)
    found = table_rows(lake_of(settings), None)
    assert b"key-7" in found[vbucket]
    assert found == source_rows(replicated, high(replicated))


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_document_at_the_source_is_kept_out(cluster: ProducerCluster, settings: Settings) -> None:
    run(settings, once=True)
    _, request = ask_erasure(settings, erasure("key-7", keeps_out=True))
    run(settings, once=True)
    assert answer(settings, request).state is RequestState.DONE
    cluster.set(b"key-7", b'{"n": "secret"}')
    cluster.set(b"key-8", b'{"n": "seen"}')
    run(settings, once=True)
    lake = lake_of(settings)
    [row] = lake.table(DOCS.name).rows("value, xattrs, datatype, seqno", "key = 'key-7'")
    assert (row["value"], row["xattrs"], row["datatype"]) == (b"", None, 0)
    newest = cluster.get(b"key-7")
    assert int(row["seqno"]) == newest.seqno
    assert not check_erased(settings, erasure("key-7")).found, "it is kept out"
    with pytest.raises(IncompleteRunError, match=r"docs: .*"):
        check_erased(settings, erasure("key-7", "key-8")).refuse_found()
    [row] = lake.table(DOCS.name).rows("value", "key = 'key-8'")
    assert row["value"] == b'{"n": "seen"}'


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_document_of_a_collection_whose_rows_outlived_it(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    cluster.create_scope("s")
    cluster.create_collection("s", "users")
    write_documents(cluster, 20, "s.users")
    settings = settings_for(cluster, tmp_path, round=QUICK, policy={"dropped": "keep"})
    run(settings, once=True)
    of_users = Erasure("s.users", frozenset({key_hash("key-7")}))
    with pytest.raises(ConfigError, match="found 1 of the documents at the source"):
        ask_erasure(settings, of_users)
    cluster.drop_collection("s", "users")
    run(settings, once=True)
    documents, request = ask_erasure(settings, of_users)
    [users] = documents.lost_versions.keys() - {"changes"}
    run(settings, once=True)
    assert answer(settings, request).state is RequestState.DONE
    assert not check_erased(settings, of_users).found
    lake = lake_of(settings)
    assert lake.table(users).rows("count(*) AS found", "true") == [{"found": 19}]
    assert table_rows(lake, None) == source_rows(cluster, high(cluster))


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_run_without_end_erases_between_two_rounds(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    settings = settings_for(
        cluster,
        tmp_path,
        round=QUICK | {"minimum_interval_seconds": 1},
        apply={"when": "age", "age_seconds": 3600.0},
    )
    run(settings, once=True)
    cluster.delete(b"key-7")
    run(settings, once=True)
    stop = Event()
    driver = in_thread(lambda: run(settings, once=False, stop=stop))
    try:
        _, request = ask_erasure(settings, erasure("key-7"))
        wait_for("the erasure", lambda: driver.done() or not answer(settings, request).is_open)
    finally:
        stop.set()
    driver.result()
    assert answer(settings, request).state is RequestState.DONE
    assert not check_erased(settings, erasure("key-7")).found


@pytest.mark.usefixtures("lakes_in_memory")
def test_an_erasure_that_fails_is_told_and_tried_again(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise LakeError("the store refuses to delete")

    settings = settings_for(cluster, tmp_path, round=QUICK, apply={"when": "never"})
    run(settings, once=True)
    cluster.delete(b"key-7")
    run(settings, once=True)
    _, request = ask_erasure(settings, erasure("key-7"))
    run(settings, once=True)
    waiting = answer(settings, request)
    assert waiting.state is RequestState.BEGUN
    assert "table docs does not hold round 2 whole" in waiting.detail
    assert f"begun: asked for by {waiting.who}; waits: table docs" in str(
        figures_of(lake_of(settings))
    )
    with monkeypatch.context() as patched:
        patched.setattr("dcp.lake.run.driver_erasures.purge_tables", refused)
        rounds = latest_round(lake_of(settings))
        always = replace(settings, apply=ApplySettings())
        with pytest.raises(IncompleteRunError, match=r"waits: the store refuses to delete"):
            run(always, once=True)
        assert latest_round(lake_of(settings)) == rounds + 1
    apply_pending(settings, observer=Observer())
    assert answer(settings, request).state is RequestState.DONE
    assert not check_erased(settings, erasure("key-7")).found


class DriverDiedError(BaseException):
    """No code of the product handles it."""


@pytest.mark.usefixtures("lakes_in_memory")
@pytest.mark.parametrize("step", ERASE_STEPS)
def test_the_next_driver_erases_wherever_one_died(
    cluster: ProducerCluster, settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """In `test_crashes`, the process of a driver is killed at the later steps."""

    def die(reached: str) -> None:
        if reached == step:
            raise DriverDiedError

    run(settings, once=True)
    cluster.delete(b"key-7")
    run(settings, once=True)
    _, request = ask_erasure(settings, erasure("key-7"))
    with monkeypatch.context() as patched:
        patched.setattr("dcp.lake.run.driver_erasures.reached", die)
        with pytest.raises(DriverDiedError):
            run(settings, once=True)
    assert answer(settings, request).state is RequestState.BEGUN
    run(settings, once=True)
    assert answer(settings, request).state is RequestState.DONE
    assert not check_erased(settings, erasure("key-7")).found
    assert table_rows(lake_of(settings), None) == source_rows(cluster, high(cluster))


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_round_that_was_planned_before_a_request_brings_no_value(
    cluster: ProducerCluster, settings: Settings
) -> None:
    """Another driver has streamed the value when the request begins, and commits too late."""
    run(settings, once=True)
    access = source_access(settings)
    other = Driver(lake_of(settings), settings, access, Observer())
    cluster.set(b"key-7", b'{"n": "secret"}')
    plan = other.prepare_round(query_cluster(access))
    assert isinstance(plan, RoundPlan)
    _, request = ask_erasure(settings, erasure("key-7", keeps_out=True))
    run(settings, once=True)
    assert answer(settings, request).state is RequestState.DONE
    with pytest.raises(FencedError):
        other.round(plan)
    assert not check_erased(settings, erasure("key-7", keeps_out=True)).found


@pytest.mark.usefixtures("lakes_in_memory")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (None, "a JSON object of collection, keys_sha256"),
        ('{"collection": "a.b"}', "a JSON object of collection, keys_sha256"),
        ('{"collection": "b", "keys_sha256": ["00"]}', "expected scope.collection"),
        ('{"collection": "a.b", "keys_sha256": ["00"]}', "64 hexadecimal digits"),
        ('{"collection": "a.b", "keys_sha256": []}', "a list of 1 to 10,000"),
        ('{"collection": "a.b", "keys_sha256": ["' + "0" * 64 + '"]}', "_default._default"),
    ],
)
def test_an_impossible_request_is_refused(settings: Settings, options: str, told: str) -> None:
    run(settings, once=True)
    asked = replace(ControlRequest.new(RequestAction.ERASE, None, {}), options=options)
    Control(lake_of(settings)).write(asked, RequestState.REQUESTED)
    run(settings, once=True)
    refused = answer(settings, asked)
    assert refused.state is RequestState.REFUSED
    assert told in refused.detail


def test_a_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_bytes(b"\xef\xbb\xbfa\r\n\nb c\n")
    assert erasure_from_file(file, COLLECTION).key_hashes == {key_hash("a"), key_hash("b c")}
    for text in (b"", b"\xff"):
        file.write_bytes(text)
        with pytest.raises(ConfigError, match=r"--keys .*expected"):
            erasure_from_file(file, COLLECTION)


@pytest.mark.slow
def test_no_file_of_a_lake_has_an_erased_document(
    replicated: ProducerCluster, tmp_path: Path, spark: "SparkSession"
) -> None:
    secret = b"S3CR3T-T3XT"
    replicated.set(b"key-7", b'{"n": "%b"}' % secret)
    replicated.wait_until_replicated()
    settings = settings_for(replicated, tmp_path, round=QUICK)
    run(settings, once=True, spark=spark)
    feed = "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    spark.sql(f"ALTER TABLE {lake_of(settings, spark).table_sql(DOCS.name)} {feed}")
    vbucket = replicated.vbucket_of(b"key-7")
    replicated.pause_replication()
    replicated.set(b"key-7", b'{"n": "%b, lost"}' % secret)
    run(settings, once=True, spark=spark)
    replicated.failover(replicated.vbucket_owner(vbucket))
    replicated.set(b"key-8", b'{"n": "other"}')
    run(settings, once=True, spark=spark)
    assert lake_of(settings, spark).table(AUDIT_TABLE).exists()
    replicated.delete(b"key-7")
    run(settings, once=True, spark=spark)
    samples = [{"vbucket": 0, "key": key, "seqno": Decimal(1)} for key in ("key-7", "key-8")]
    checked = {"table": DOCS.name, "success": True, "samples": samples}
    quality = ensure_ledger(lake_of(settings, spark), QUALITY_TABLE, QUALITY)
    quality.append(pa.Table.from_pylist([checked], schema=QUALITY), {})
    documents, request = ask_erasure(settings, erasure("key-7"))
    assert documents.rows[AUDIT_TABLE] == 1
    assert set(check_erased(settings, erasure("key-7")).found) == {
        "changes",
        "docs",
        AUDIT_TABLE,
        QUALITY_TABLE,
    }
    run(settings, once=True, spark=spark)
    assert answer(settings, request).state is RequestState.DONE, answer(settings, request)
    assert check_erased(settings, erasure("key-7")).found == {}
    require_nowhere(tmp_path / "lake", secret.decode())
    lake = lake_of(settings, spark)
    [left] = lake.table(QUALITY_TABLE).rows("samples", "true")
    assert [each["key"] for each in left["samples"]] == ["key-8"]
    assert table_rows(lake, None) == source_rows(replicated, high(replicated))
    assert verify(settings, spark=spark).differing == 0
    assert figures_of(lake).warnings == ()
