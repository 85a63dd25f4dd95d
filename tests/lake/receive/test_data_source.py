"""``spark.read.format("dcp")``: found by a session that knows nothing of us, and what it reads."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dcp.errors import ConfigError
from dcp.lake.receive.data_source import DOCUMENTS, DcpDataSource, current_documents
from dcp.lake.spark.java import find_java_home
from dcp.lake.tables.schema import CHANGES
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.quick_spark import QUICK_JAVA_OPTIONS

ROOT = Path(__file__).parents[3]

PROGRAM = """\
import json, sys
from pyspark.sql import SparkSession
options, conf = json.loads(sys.stdin.read())
builder = SparkSession.builder.master("local[1]")
for key, value in conf.items():
    builder = builder.config(key, value)
reader = builder.getOrCreate().read.format("dcp").options(**options)
print(json.dumps(sorted(map(list, reader.load().select("key", "document").collect()))))
"""


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(vbuckets=2, seed=7)) as cluster:
        for number in range(6):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
        cluster.set(b"key-1", b'{"n": "newer"}')
        cluster.delete(b"key-2")
        cluster.set(b"key-3", b"\xff no JSON")
        yield cluster


LIVING = [
    ["key-0", '{"n": 0}'],
    ["key-1", '{"n": "newer"}'],
    ["key-3", None],
    ["key-4", '{"n": 4}'],
    ["key-5", '{"n": 5}'],
]


@pytest.fixture
def options(cluster: ProducerCluster, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "password").write_text("password")
    return {
        "seeds": ",".join(cluster.seeds),
        "bucket": cluster.settings.bucket,
        "username": "Administrator",
        "password_file": str(tmp_path / "password"),
    }


@pytest.mark.slow
def test_a_session_of_the_users_own_knows_the_format(
    options: dict[str, str], tmp_path: Path
) -> None:
    """As in an activated environment; the checkout's root stands for what pip installs."""
    conf = {
        "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([options, conf]),
        cwd=tmp_path,
        env=os.environ
        | {"JAVA_HOME": str(find_java_home()), "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == LIVING


def read(options: dict[str, str]) -> list[dict[str, Any]]:
    """Return what Spark would get."""
    reader = DcpDataSource(options).reader(StructType())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_documents_have_their_bytes_if_they_are_no_json(options: dict[str, str]) -> None:
    documents = read(options)
    assert sorted([row["key"], row["document"]] for row in documents) == LIVING
    assert [row["value"] for row in documents if row["key"] == "key-3"] == [b"\xff no JSON"]


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"sedes": "x"}, "unknown option 'sedes'"),
        ({"password": "hunter2"}, "unknown option 'password'.*, expected .*password_env"),
    ],
)
def test_odd_options_are_refused_when_the_format_is_loaded(odd: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        DcpDataSource(odd).schema()
    assert "hunter2" not in str(refused.value), "Spark would carry it to each task"


def of(kind: str, seqno: int, key: str | None = None, **more: object) -> dict[str, object]:
    """Return a row of ``changes``."""
    return (
        {"kind": kind, "seqno": seqno, "key": key, "vbucket": 0, "collection_id": 8}
        | {
            "value": b"1",
            "datatype": 0,
        }
        | more
    )


SET_A = of("mutation", 2, "a")
NOT_JSON = [b"", None, b"x", b"\xff", b'{"a":']


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([], []),
        ([of("snapshot_marker", 1, collection_id=None), of("status", 0)], []),
        ([SET_A, of("mutation", 3, "a", value=b"[3]")], [("a", "[3]")]),
        ([of("mutation", 3, "a", value=b"[3]"), SET_A], [("a", "[3]")]),
        ([SET_A, of("deletion", 3, "a"), of("mutation", 4, "b")], [("b", "1")]),
        ([SET_A, of("expiration", 3, "a")], []),
        ([SET_A, of("deletion", 3, "a", vbucket=1)], [("a", "1")]),
        ([SET_A, of("deletion", 3, "a", collection_id=9)], [("a", "1")]),
        ([SET_A, of("system_event", 3), of("mutation", 4, "b")], [("b", "1")]),
        ([SET_A, of("system_event", 1)], [("a", "1")]),
        ([SET_A, of("system_event", 3, collection_id=9)], [("a", "1")]),
        ([SET_A, of("system_event", 3, vbucket=1)], [("a", "1")]),
        ([SET_A, of("system_event", 3, collection_id=None)], [("a", "1")]),
        ([of("mutation", 2**64 - 2, "a"), of("deletion", 2**64 - 1, "a")], []),
        ([of("mutation", 1, "a", value=b"x", datatype=1)], [("a", "x")]),
        ([of("mutation", 1, "a", datatype=2)], [("a", None)]),
        *[([of("mutation", 1, "a", value=value)], [("a", None)]) for value in NOT_JSON],
    ],
)
def test_which_documents_are_left(
    changes: list[dict[str, object]], left: list[tuple[str, str | None]]
) -> None:
    batches = [pa.RecordBatch.from_pylist([row], CHANGES) for row in changes]
    found = list(current_documents(iter(batches)))
    assert all(batch.schema == DOCUMENTS for batch in found)
    assert [(row["key"], row["document"]) for each in found for row in each.to_pylist()] == left
