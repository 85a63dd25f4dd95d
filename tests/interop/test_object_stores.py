"""What a lake asks of its store, of servers of each kind: S3's twice, Azure's and Google's.

Moto's part goes with the tests that need no other program.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest

from dcp.lake.adapters.opening import refuse_to_start
from dcp.lake.config.memory import UPLOAD_PART_BYTES
from dcp.lake.run.set_up_check import CheckedStep
from dcp.lake.run.store_check import try_store
from dcp.lake.store.object_location import ObjectLocation
from dcp.lake.store.remembered_table import RememberedTables
from dcp.lake.store.table import CommitConflictError
from dcp.lake.store.table_location import DELTA_LOG, commit_name
from dcp.lake.tables.schema import CHANGES
from tests.interop.store_servers import AZURE_ACCOUNT, AZURE_KEY, SERVERS, StoreServer
from tests.lake.object_store import BUCKET, SECRET_KEY
from tests.lake.rounds_in_store import commit_file, make_table, write_file
from tests.lake.tables_at import table_at

NAMES = [
    name if name == "moto" else pytest.param(name, marks=pytest.mark.interop) for name in SERVERS
]
OURS = '{"dcplake":{"by":"tests"}}'
WRITERS = 4

StartedServer = Callable[[str], StoreServer]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedServer]:
    running: dict[str, StoreServer] = {}
    with ExitStack() as stack:

        def start(name: str) -> StoreServer:
            if name not in running:
                folder = tmp_path_factory.mktemp(name)
                running[name] = stack.enter_context(SERVERS[name](folder))
            return running[name]

        yield start


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, started: StartedServer) -> StoreServer:
    return started(request.param)


@pytest.fixture
def location(server: StoreServer) -> ObjectLocation:
    return server.location(f"table-{uuid4().hex}")


def test_a_file_is_written_listed_measured_and_read(location: ObjectLocation) -> None:
    assert not location.has_delta_log() and not location.has_data() and not location.commits_from(0)
    assert location.sizes_of(["part.parquet"]) == [None]
    with location.writing("part.parquet", UPLOAD_PART_BYTES) as file:
        file.write(b"content")
    assert location.sizes_of(["part.parquet", "another"]) == [7, None]
    assert location.has_data() and not location.has_delta_log()
    for version in range(20):
        location.commit(version, b"%d" % version)
    assert location.has_delta_log()
    assert list(location.commits_from(17)) == [17, 18, 19]
    assert [each.content for each in location.read_commits([5, 18, 19, 20, 21])] == [
        b"5",
        b"18",
        b"19",
    ]


def test_of_writers_of_one_commit_at_once_one_wins_and_its_content_stays(
    location: ObjectLocation,
) -> None:
    def commit(writer: int) -> bool:
        try:
            location.commit(0, b"%d" % writer)
        except FileExistsError as refusal:
            assert str(refusal) == f"{location.url}/{DELTA_LOG}/{commit_name(0)}"
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(commit, range(WRITERS)))
    assert won.count(True) == 1
    [kept] = location.read_commits([0])
    assert kept.content == b"%d" % won.index(True)
    location.commit(0, kept.content)  # as where the store's first answer was lost


@pytest.mark.parametrize("parts", [0, 3])
def test_an_upload_that_is_cut_leaves_nothing_and_one_that_ends_all_of_it(
    location: ObjectLocation, parts: int
) -> None:
    content = bytes(range(256)) * (UPLOAD_PART_BYTES // 256) * parts + b"the rest"
    with (
        pytest.raises(OSError, match="cut"),
        location.writing("a.parquet", UPLOAD_PART_BYTES) as file,
    ):
        file.write(content)
        raise OSError("cut")
    assert not location.has_data()
    with location.writing("a.parquet", UPLOAD_PART_BYTES) as file:
        file.write(content)
    assert location.sizes_of(["a.parquet"]) == [len(content)]


def test_the_trials_of_doctor_find_all_that_a_lake_needs(
    server: StoreServer, location: ObjectLocation
) -> None:
    steps: list[CheckedStep] = []
    try_store(location, refuse_to_start, server.root, steps.append)
    assert [(each.name, each.state) for each in steps] == [
        (f"store {name}", "ok") for name in ("list", "write", "read", "commit", "swap", "delete")
    ]
    assert steps[0].found.startswith(server.root.removesuffix("/lake"))
    assert steps[3].found == "it refused to overwrite the file"
    assert steps[4].found == "it swapped the file once, and refused the second time"
    assert not location.has_delta_log()


def test_a_table_is_made_appended_to_by_several_and_read_without_spark(
    location: ObjectLocation,
) -> None:
    table = table_at(location)
    shown = repr(table)
    assert not any(secret in shown for secret in (SECRET_KEY, AZURE_KEY))
    assert not table.exists()
    rows = pa.table({"id": ["a"]})
    table.create(rows.schema, (), {"dcplake.a": "1"})
    assert table.properties()["dcplake.a"] == "1"
    assert not location.has_data()
    created = location.commits_from(0)

    def append(_: int) -> None:
        other = replace(table, remembered=RememberedTables())
        other.append(rows, {"by": "tests"})

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(append, range(WRITERS)))
    assert location.has_data()
    versions = list(location.commits_from(0))
    assert versions == list(range(len(versions)))
    assert location.commits_from(0)[0] == created[0]
    assert len(table.rows("id", "true")) == WRITERS, "what was remembered is not the newest"
    commits = table.commits(len(versions) + 10)
    assert [each["version"] for each in commits] == versions[::-1]
    # Appends that make many files put them into one, by commits of their own.
    appended = [each for each in commits if each.get("userMetadata") == OURS]
    assert len(appended) == WRITERS
    assert len(table.commits(2)) == 2


def test_files_of_rounds_are_committed_and_read(location: ObjectLocation) -> None:
    table = table_at(location)
    make_table(location)
    row_bytes = UPLOAD_PART_BYTES // 2  # so that files are uploaded in parts
    for version in range(2):
        commit_file(location, write_file(location, row_bytes), version)
    with pytest.raises(CommitConflictError, match=r"0{19}2\.json: found a commit there"):
        commit_file(location, write_file(location), 1)
    assert table.size().files == 2
    assert table.columns() == CHANGES
    assert [len(each["value"]) for each in table.rows("value", "true")] == [row_bytes] * 8


@pytest.mark.interop
def test_both_names_of_a_container_of_azure_lead_to_the_same_table(started: StartedServer) -> None:
    server = started("azurite")
    rows = pa.table({"id": ["a"]})
    server.table("named twice").create(rows.schema, (), {})
    other = f"abfss://{BUCKET}@{AZURE_ACCOUNT}.dfs.core.windows.net/lake"
    table = replace(server, root=other).table("named twice")
    table.append(rows, {})
    assert table.rows("id", "true") == server.table("named twice").rows("id", "true")
    assert list(server.location("named twice").commits_from(0)) == [0, 1]
