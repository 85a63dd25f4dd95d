"""A store that fails while tasks upload and the driver commits: all or nothing, and one line.

Without Spark: what tasks and drivers do there is done here.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from types import MappingProxyType
from unittest.mock import Mock
from uuid import uuid4

import pyarrow as pa
import pytest
from obstore.exceptions import AlreadyExistsError

from dcp.errors import (
    DcplakeError,
    LakeError,
    SecretError,
    SetupError,
    StoreRefusedError,
    StoreUnavailableError,
)
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.spark_table import SparkTable
from dcp.lake.config.memory import UPLOAD_PART_BYTES
from dcp.lake.config.settings import LakeSettings, Settings, SourceSettings, SparkSettings
from dcp.lake.config.storage_options import LOG_STORE, options_of_delta_rs
from dcp.lake.spark.failures import known_error
from dcp.lake.store import bucket_store, trial
from dcp.lake.store.data_file import DataFile, DataFileWriter
from dcp.lake.store.failures import CAUSES, named_cause, store_error
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.object_location import ObjectLocation
from dcp.lake.store.table import CommitConflictError
from dcp.lake.store.table_location import DELTA_LOG
from dcp.lake.tables.schema import CHANGES
from tests.lake import tables_at
from tests.lake.object_store import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    ConflictAtFirst,
    Failure,
    ObjectStore,
    Request,
    kind_of,
)
from tests.lake.rounds_in_store import CONTENTS, commit_file, make_table, write_file
from tests.lake.tables_at import no_spark, table_at

BUSY: Failure = ("503 Slow Down", "SlowDown")
ENDED: Failure = ("400 Bad Request", "ExpiredToken")
MOST_SECONDS = 30.0
CHANGES_ROW = pa.Table.from_pylist([{"round": 2}], schema=CHANGES)


class Table:
    """A table in a store that may fail."""

    def __init__(
        self, store: ObjectStore, properties: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.store, self.prefix = store, uuid4().hex
        make_table(self.location, properties=properties)

    @property
    def location(self) -> ObjectLocation:
        return self.store.location(self.prefix)

    def write(self, row_bytes: int = 100) -> DataFile:
        return write_file(self.location, row_bytes)

    def commit(self, file: DataFile, version: int = 0) -> None:
        commit_file(self.location, file, version)

    def round(self, row_bytes: int = 100) -> None:
        self.commit(self.write(row_bytes))

    def versions(self) -> list[int]:
        return list(self.location.commits_from(0))


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        store.options |= {"max_retries": "3", "timeout": "2s"}
        yield store


@pytest.fixture
def table(server: ObjectStore) -> Iterator[Table]:
    yield Table(server)
    server.answer, server.loses_answer = lambda _: None, lambda _: False


def is_put(request: Request, suffix: str) -> bool:
    return request["REQUEST_METHOD"] == "PUT" and str(request["PATH_INFO"]).endswith(suffix)


@pytest.mark.parametrize("times", [1, 2])
def test_a_commit_whose_answer_is_lost_stands_once(table: Table, times: int) -> None:
    lost: list[str] = []

    def loses(request: Request) -> bool:
        if not is_put(request, ".json") or len(lost) == times:
            return False
        lost.append(request["PATH_INFO"])
        return True

    table.store.loses_answer = loses
    table.round()
    assert len(lost) == times
    assert table.versions() == [0, 1]
    assert table.location.open().version() == 1
    file = table.write()
    table.commit(file, 1)
    with pytest.raises(CommitConflictError, match=r"0{19}1\.json: found a commit there"):
        table.commit(file)


def test_a_commit_that_meets_another_request_for_its_key_is_written_again(table: Table) -> None:
    table.store.answer = ConflictAtFirst(times=2)
    make_table(table.store.location(prefix := uuid4().hex))
    assert list(table.store.location(prefix).commits_from(0)) == [0]
    table.round()
    assert table.versions() == [0, 1]


def test_a_commit_that_meets_another_one_finds_the_version_taken(table: Table) -> None:
    table.round()
    table.store.answer = ConflictAtFirst(times=2)
    with pytest.raises(CommitConflictError, match=r"0{19}1\.json: found a commit there"):
        table.round()
    assert table.versions() == [0, 1]


def test_a_store_whose_answer_is_always_409_is_an_outage(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is, no version is taken."""
    monkeypatch.setattr(trial, "_ATTEMPTS", 2)
    assert table.location.can_commit()
    table.store.answer = ConflictAtFirst(times=2)
    with pytest.raises(AlreadyExistsError) as told:
        table.round()
    assert isinstance(known_error(told.value), StoreUnavailableError)
    new = table_at(table.store.location(uuid4().hex), "the lake: table t")
    with pytest.raises(StoreUnavailableError, match="ConditionalRequestConflict: the object store"):
        new.create(CHANGES, ["round"], {})


def test_a_store_that_is_busy_for_a_while_delays_a_round(table: Table) -> None:
    refused: set[tuple[str, str, str]] = set()

    def answer(request: Request) -> Failure | None:
        what = request["REQUEST_METHOD"], request["PATH_INFO"], request["QUERY_STRING"]
        if what in refused:
            return None
        refused.add(what)
        return ("429 Too Many Requests", "TooManyRequests") if len(refused) % 2 else BUSY

    table.store.answer = answer
    table.round(UPLOAD_PART_BYTES // 2)
    assert any(query.startswith("partNumber=1") for _, _, query in refused)
    assert table.versions() == [0, 1]


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (BUSY, "503 Service Unavailable: the object store does not answer"),
        (ENDED, "the credentials of the object store have expired; renew them and run again"),
        (("403 Forbidden", "AccessDenied"), "the object store refused the credentials"),
        (None, "the object store does not answer, or says that it cannot; see that the endpoint"),
    ],
)
def test_a_store_that_fails_on_ends_the_round_and_leaves_nothing_of_it(
    table: Table, suffix: str, failure: Failure | None, said: str
) -> None:
    """None: it takes the request and says nothing."""
    parts: list[str] = []

    def answer(request: Request) -> Failure | None:
        query = str(request["QUERY_STRING"])
        if request["REQUEST_METHOD"] == "DELETE":
            parts.append(query)
        if not is_put(request, suffix) or "partNumber=1" in query:
            return None
        if failure is None:
            sleep(2.5)
        return failure or BUSY

    if failure is None:
        table.store.options["max_retries"] = "1"
    table.store.answer = answer
    begin = monotonic()
    with pytest.raises(Exception) as told:
        table.round(UPLOAD_PART_BYTES // 2 if suffix == ".parquet" else 100)
    table.store.options["max_retries"] = "3"
    assert monotonic() - begin < MOST_SECONDS
    error = store_error(told.value)
    assert isinstance(error, DcplakeError) and said in str(error)
    assert "\n" not in str(error) and SECRET_KEY not in str(error)
    table.store.answer = lambda _: None
    assert table.versions() == [0]
    if suffix == ".parquet":
        assert [query.partition("=")[0] for query in parts] == ["uploadId"], "it was taken back"
        assert not [name for name in table.store.names(table.prefix) if name.endswith(".parquet")]
    table.round()
    assert table.versions() == [0, 1]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (BUSY, "503 Service Unavailable: the object store does not answer, or says that it cannot"),
        (("404 Not Found", "NoSuchKey"), "Kernel error -> Generic S3 error: Error performing list"),
        (("200 OK", ""), "Kernel error -> Generic S3 error: Content-Length Header missing from"),
    ],
)
def test_a_checkpoint_that_fails_is_one_plain_line_of_the_log(
    server: ObjectStore, caplog: pytest.LogCaptureFixture, failure: Failure, said: str
) -> None:
    table = Table(server, {"delta.checkpointInterval": "1"})
    file, committed = table.write(), list[str]()

    def answer(request: Request) -> Failure | None:
        if is_put(request, ".json"):
            committed.append(request["PATH_INFO"])
            return None
        return failure if committed else None

    server.answer = answer
    table.commit(file)
    server.answer = lambda _: None
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith(f"{table.location}: version 1 has no checkpoint: {said}")
    assert line.isprintable()


def test_a_store_that_does_not_answer_is_not_asked_by_spark_too(table: Table) -> None:
    lake_table = table_at(table.location, "the lake: table t")
    table.store.answer = lambda _: BUSY
    for ask in (lake_table.properties, lake_table.exists, lake_table.read_delta_log):
        with pytest.raises(SetupError, match=r"^\S.*503 Service Unavailable: the object store"):
            ask()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (("403 Forbidden", "InvalidAccessKeyId"), "the object store refused the credentials"),
        (("403 Forbidden", "AccessDenied"), "the object store refused the credentials"),
        (("404 Not Found", "NoSuchBucket"), "found no such bucket; make it"),
        (ENDED, "the credentials of the object store have expired; renew them"),
        (("400 Bad Request", "InvalidToken"), "InvalidToken: the object store refused the"),
    ],
)
def test_a_store_that_refuses_is_not_asked_by_spark_too(
    table: Table, failure: Failure, said: str
) -> None:
    """Neither of a table that was read before, nor of one that was not."""
    old, new = (table_at(table.location, "the lake: table t") for _ in range(2))
    assert old.exists()
    table.store.answer = lambda _: failure
    asks: list[Callable[[FileTable], object]] = [
        FileTable.properties,
        FileTable.exists,
        FileTable.read_delta_log,
        lambda found: found.commits(1),
        lambda found: found.rows("round", "true"),
        lambda found: found.append(CHANGES.empty_table(), {}),
    ]
    for lake_table, ask in product((old, new), asks):
        with pytest.raises(SetupError) as told:
            ask(lake_table)
        assert f"the lake: table t: {said}" in str(told.value) and "\n" not in str(told.value)


@pytest.fixture
def empty_secret(table: Table) -> Iterator[None]:
    secret = Path(table.store.options["secret_access_key_file"])
    content = secret.read_text()
    secret.write_text("")
    yield
    secret.write_text(content)


@pytest.mark.usefixtures("empty_secret")
def test_a_key_file_that_becomes_empty_leaves_all_readers_the_last_key(table: Table) -> None:
    lake_table = table_at(table.location)
    lake_table.append(CHANGES_ROW, {})
    assert table_at(table.location).rows("round", "true") == [{"round": 2}]
    assert table.location.open().version() == 1


@pytest.mark.usefixtures("empty_secret")
def test_spark_is_not_asked_while_the_file_of_a_secret_was_never_filled(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket_store._bucket.cache_clear()
    lake_table = table_at(table.location)
    catalog = LakeLocation(schema="s", way=lambda _: table.location.way)
    monkeypatch.setattr(SparkTable, "catalog_location", lambda *_: table.location.url)
    asks: list[Callable[[], object]] = [
        lake_table.properties,
        lake_table.exists,
        lake_table.read_delta_log,
        lambda: lake_table.commits(1),
        lambda: lake_table.append(CHANGES.empty_table(), {}),
        lambda: SparkStore(no_spark, catalog).table("t"),
    ]
    for ask in asks:
        with pytest.raises(SecretError, match="secret_access_key_file: the first line of the file"):
            ask()


def test_a_round_commits_while_spark_optimizes_the_same_table(table: Table) -> None:
    """Spark stands still in OPTIMIZE, before its commit."""
    begun, ends = Event(), Event()

    def done() -> list[dict[str, dict[str, int]]]:
        begun.set()
        assert ends.wait(MOST_SECONDS)
        return [{"metrics": {"numFilesAdded": 1, "numFilesRemoved": 4}}]

    statement = Mock(collect=done)
    spark = Mock(sql=lambda _: statement)
    lake_table = replace(table_at(table.location), start_spark=lambda: spark)
    with ThreadPoolExecutor(2) as pool:
        optimizing = pool.submit(lake_table.optimize, {}, 0)
        try:
            assert begun.wait(MOST_SECONDS)
            pool.submit(table.round).result(MOST_SECONDS)
            assert table.versions() == [0, 1] and not optimizing.done()
        finally:
            ends.set()
        assert optimizing.result()["numFilesRemoved"] == 4


def is_write(request: Request) -> bool:
    return kind_of(request) == "PUT"


def is_write_of_a_commit(request: Request) -> bool:
    return is_put(request, ".json")


@pytest.mark.parametrize("refused", [is_write, is_write_of_a_commit])
@pytest.mark.parametrize(
    ("failure", "said", "may_stand"),
    [
        (("403 Forbidden", "AccessDenied"), "the object store refused the credentials", False),
        (BUSY, "503 Service Unavailable: the object store does not answer", True),
    ],
)
def test_rows_that_a_store_refuses_are_one_line_that_says_whether_they_may_stand(
    table: Table,
    refused: Callable[[Request], bool],
    failure: Failure,
    said: str,
    may_stand: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert table.location.can_commit()
    lake_table = table_at(table.location, "the lake: table t")
    table.store.answer = lambda request: failure if refused(request) else None
    with pytest.raises(SetupError) as told:
        lake_table.append(CHANGES_ROW, {})
    line = str(told.value)
    assert line.startswith(f"the lake: table t: {said}") and "\n" not in line
    is_unknown = may_stand and refused is is_write_of_a_commit
    assert ("the rows may have been written" in line) == is_unknown
    assert ("run again" in line) == (may_stand and not is_unknown), "it does not contradict itself"
    assert capfd.readouterr().err == ""
    table.store.answer = lambda _: None
    assert table.versions() == [0]


def test_rows_whose_commits_lose_their_answers_stand_once(table: Table) -> None:
    lake_table = table_at(table.location, "the lake: table t")
    lost: list[str] = []

    def loses(request: Request) -> bool:
        if not is_put(request, ".json") or request["PATH_INFO"] in lost:
            return False
        lost.append(request["PATH_INFO"])
        return True

    table.store.loses_answer = loses
    for count in range(1, 8):
        lake_table.append(CHANGES_ROW, {})
        assert len(lake_table.rows("round", "round = 2")) == count
        assert lake_table.size().files < 4, "many small files become one"
    assert len(lost) == 9, "of seven appends, and two that put files together"


def test_rows_whose_commit_cannot_be_read_back_may_have_been_written(table: Table) -> None:
    lake_table = table_at(table.location, "the lake: table t")
    lost: list[object] = []

    def loses(request: Request) -> bool:
        is_first = is_put(request, ".json") and not lost
        if is_first:
            lost.append(request["PATH_INFO"])
        return is_first

    def refuses(request: Request) -> Failure | None:
        is_read_back = request["REQUEST_METHOD"] == "GET" and request["PATH_INFO"] in lost
        return ("403 Forbidden", "AccessDenied") if is_read_back else None

    table.store.loses_answer, table.store.answer = loses, refuses
    with pytest.raises(StoreUnavailableError, match="the rows may have been written"):
        lake_table.append(CHANGES_ROW, {})
    table.store.answer = lambda _: None
    assert table.versions() == [0, 1]


def test_a_store_that_another_driver_tries_has_no_table_for_that(server: ObjectStore) -> None:
    location = server.location(uuid4().hex)
    trial = location.trial()
    trial.write()
    assert not location.has_delta_log() and not table_at(location).exists()
    trial.delete()


def test_a_root_in_a_table_is_refused(server: ObjectStore) -> None:
    table = server.location(f"{uuid4().hex}/t")
    make_table(table)
    for inside in (table.url, f"{table.url}/lake", f"{table.url}/a/lake"):
        with pytest.raises(LakeError, match=f"in the Delta table {table.url}, whose VACUUM"):
            LakeLocation(root=inside, way=lambda _: table.way).refuse_location_in_table()
    LakeLocation(root=f"{table.url}s", way=lambda _: table.way).refuse_location_in_table()


def test_data_is_found_behind_many_deletion_vectors(server: ObjectStore) -> None:
    prefix = uuid4().hex
    location = server.location(prefix)
    for number in range(1000):
        server.write(f"{prefix}/deletion_vector_{number:04}.bin", b"", days_old=0)
    assert not location.has_data()
    server.write(f"{prefix}/part-0.parquet", b"PAR1", days_old=0)
    assert location.has_data()


def test_what_killed_processes_left_in_a_log_is_removed_after_a_day(server: ObjectStore) -> None:
    prefix = uuid4().hex
    location = server.location(prefix)
    make_table(location)
    names = (".a.dcplake-probe", f".{1:020}.crc.b.tmp", f".{2:020}.crc.c.tmp", "d.tmp", ".e.crc")
    for name in names:
        server.write(f"{prefix}/{DELTA_LOG}/{name}", b"{}", days_old=0 if ".c." in name else 2)
    asked: list[str] = []
    server.answer = lambda request: asked.append(kind_of(request))
    for _ in range(2):
        location.tidy_delta_log()
    server.answer = lambda _: None
    assert asked == ["LIST", "DELETE", "LIST"]
    assert sorted(server.names(f"{prefix}/{DELTA_LOG}")) == sorted([*names[2:], f"{0:020}.json"])


def test_a_folder_that_this_user_may_not_read_is_not_asked_by_spark_too(tmp_path: Path) -> None:
    location = FolderLocation(tmp_path / "t")
    log = location.path / DELTA_LOG
    log.mkdir(parents=True)
    make_table(location)
    user = os.geteuid()
    log.chmod(0)
    if user == 0:
        os.seteuid(65534)  # root may read all
    try:
        with pytest.raises(SetupError, match="this user may not read or write it"):
            table_at(location).properties()
    finally:
        os.seteuid(user)
        log.chmod(0o755)


@pytest.mark.parametrize(
    "failure",
    [("301 Moved", "PermanentRedirect"), ("400 Bad Request", "AuthorizationHeaderMalformed")],
)
def test_spark_is_asked_where_the_bucket_is_in_another_region(
    table: Table, failure: Failure
) -> None:
    table.store.answer = lambda _: failure
    with pytest.raises(AssertionError, match="Spark was started"):
        table_at(table.location).properties()


def test_keys_that_are_renewed_while_a_file_is_written_are_found(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = table.store
    monkeypatch.setattr(bucket_store, "_KEYS_LAST", timedelta(0))
    files = {name: tmp_path / name for name in ("access_key_id", "secret_access_key")}
    files["access_key_id"].write_text(ACCESS_KEY)
    files["secret_access_key"].write_text(SECRET_KEY)
    monkeypatch.setattr(
        store,
        "options",
        {k: v for k, v in store.options.items() if not k.startswith(tuple(files))}
        | {f"{name}_file": str(file) for name, file in files.items()},
    )
    row = {"round": 1, "value": os.urandom(UPLOAD_PART_BYTES)}
    batch = pa.RecordBatch.from_pylist([row], schema=CHANGES)
    try:
        with DataFileWriter(table.location, CONTENTS) as writer:
            writer.write(batch)
            store.access_keys.add("AKIDRENEWED")  # what is on its way has the old one
            files["access_key_id"].write_text("AKIDRENEWED")
            writer.write(batch)
            store.access_keys.remove(ACCESS_KEY)
            writer.write(batch)
            file = writer.finish()
        assert file is not None
        table.commit(file)
        assert table.location.open().version() == 1, "delta-rs has them, too"
    finally:
        store.access_keys = {ACCESS_KEY}


def test_a_task_whose_secret_cannot_be_read_says_which(table: Table, tmp_path: Path) -> None:
    secret = Path(table.store.options["secret_access_key_file"])
    location = table.location
    content = secret.read_text()
    bucket_store._bucket.cache_clear()
    secret.unlink()
    try:
        with pytest.raises(DcplakeError, match=r"secret_access_key_file: cannot read the file"):
            location.commit(1, b"")
    finally:
        secret.write_text(content)


@pytest.mark.parametrize("key", ["s3.impl", "class"])
def test_spark_alone_commits_where_the_user_chose_another_log_store(table: Table, key: str) -> None:
    lake = LakeSettings(root=f"s3://{BUCKET}", storage_options=table.store.options)
    conf = SparkSettings(conf={f"spark.delta.logStore.{key}": "theirs.LogStore"})
    location = lake_location(Settings(SourceSettings(), lake=lake, spark=conf))
    names = (table.prefix, uuid4().hex)
    there, new = (SparkStore(no_spark, location).table(name) for name in names)
    commits: list[Callable[[], object]] = [
        lambda: new.create(CHANGES, (), {}),
        lambda: there.append(CHANGES.empty_table(), {}),
        lambda: there.set_properties({"a": "1"}),
        lambda: there.set_properties({"a": None}),
    ]
    for commit in commits:
        with pytest.raises(AssertionError, match="Spark was started"):
            commit()
    assert [len(table.store.names(name)) for name in names] == [1, 0]


SPECIAL = "#? +ü日&=:;@!*()[]{}<>|^`~\"'$,-_.\u00a0"
"""What keys of S3 may have and a URL, a shell or SQL reads otherwise."""


def test_a_name_with_special_characters_is_the_same_place_for_all(server: ObjectStore) -> None:
    for name in ("a#b", "a?b", SPECIAL):
        prefix = f"{uuid4().hex}/{name}"
        root = f"s3://{BUCKET}/{prefix}"
        lake_location = LakeLocation(root=root, way=lambda _: server.location("").way)
        table = SparkStore(no_spark, lake_location).table("t")
        location = tables_at.location_of(table)
        assert isinstance(location, ObjectLocation) and str(location) == f"{root}/t"
        make_table(location)
        commit_file(location, write_file(location))
        table.append(CHANGES_ROW, {})
        assert sorted(row["round"] for row in table.rows("round", "true")) == [1, 1, 1, 1, 2]
        location.open().create_checkpoint()
        made = server.names(f"{prefix}/t")
        assert len(made) == 7, (name, made)


@pytest.mark.parametrize("name", ["a%20b", "a%b", "a\\b"])
def test_spark_alone_reads_a_name_that_delta_rs_decodes(server: ObjectStore, name: str) -> None:
    root = f"s3://{BUCKET}/{name}"
    location = LakeLocation(root=root, way=lambda _: server.location("").way)
    assert location.of_table("t") is None


def test_a_profile_that_becomes_empty_leaves_all_readers_the_last_key(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who opens the table would take the machine's role, perhaps another identity."""
    profile = tmp_path / "credentials"
    secret = Path(table.store.options["secret_access_key_file"]).read_text()
    keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
    profile.write_text(f"[default]\n{keys}")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {name: table.store.options[name] for name in ("endpoint", "allow_http")}
    way = options_of_delta_rs(f"s3://{BUCKET}", options, {})
    assert way is not None
    location = ObjectLocation(table.location.url, way)
    lake_table = table_at(location)
    assert lake_table.rows("round", "true") == []
    profile.write_text("")
    lake_table.append(CHANGES_ROW, {})
    profile.unlink()
    assert table_at(location).rows("round", "true") == [{"round": 2}]
    monkeypatch.setattr(bucket_store, "_KEYS_LAST", timedelta(0))
    keys_of = bucket_store._bucket(f"s3://{BUCKET}", tuple(sorted(way.items())))
    assert keys_of()["access_key_id"] == ACCESS_KEY


_FAILED = "GenericError: Error performing PUT https://b/x in 1s - Server returned non-2xx status "


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (f"{_FAILED}code: 408 Request Timeout: ", StoreUnavailableError),
        (f"{_FAILED}code: 400 Bad Request: <Error><Code>RequestTimeout<", StoreUnavailableError),
        (f"{_FAILED}code: 400 Bad Request: <Error><Code>InvalidRequest<", StoreRefusedError),
        ("x (Service: S3, Status Code: 429, Request ID: 1)", StoreUnavailableError),
        ("x (Service: S3, Status Code: 408, Request ID: 1)", StoreUnavailableError),
        (f"{_FAILED}code: 404 Not Found: <Error><Code>ContainerNotFound</Code>", SetupError),
        ("Error performing PUT http://169.254.169.254/x in 5s - connect error", StoreRefusedError),
        (
            "Error performing PUT http://169.254.169.254/x in 5s - Server returned non-2xx status "
            "code: 503 Service Unavailable: ",
            StoreUnavailableError,
        ),
    ],
)
def test_what_is_an_outage_and_what_is_refused(told: str, error: type[DcplakeError]) -> None:
    found = named_cause(told, "the lake", CAUSES)
    assert type(found) is error, found


def test_a_bucket_that_is_gone_is_told_as_that(table: Table) -> None:
    gone = replace(table.location, url=f"s3://no-such-bucket/{table.prefix}")
    with pytest.raises(FileNotFoundError, match="NoSuchBucket") as failure:
        list(gone.read_commits([0]))
    assert "found no such bucket" in str(store_error(failure.value, "the lake"))


def test_a_catalogs_table_is_not_left_to_spark_where_its_store_is_away(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = LakeLocation(schema="s", way=lambda _: table.location.way)
    store = SparkStore(no_spark, catalog)
    monkeypatch.setattr(SparkTable, "catalog_location", lambda *_: table.location.url)
    monkeypatch.setattr("dcp.lake.adapters.spark_store.log_store_of", lambda *_: LOG_STORE)
    store = replace(store, start_spark=Mock())
    assert store.location_of_files("t") is not None

    def away(*_: object) -> bool:
        raise StoreUnavailableError("the store is away")

    monkeypatch.setattr("dcp.lake.adapters.spark_store.takes_files", away)
    with pytest.raises(StoreUnavailableError, match="is away"):
        store.location_of_files("t")


def test_all_places_of_a_folder_share_a_lock(tmp_path: Path) -> None:
    one, other = FolderLocation(tmp_path / "t"), FolderLocation(tmp_path / "t")
    assert one.commits_blocked() is other.commits_blocked()
    assert one.commits_blocked() is not FolderLocation(tmp_path / "u").commits_blocked()
