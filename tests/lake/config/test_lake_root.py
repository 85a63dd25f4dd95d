"""A lake's root is one place for Spark, delta-rs and obstore; or one line says what is wrong."""

from pathlib import Path
from uuid import uuid4

import pytest

from dcp.errors import ConfigError, LakeError
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.config.lake_root import checked_root, local_root
from dcp.lake.config.settings import LakeSettings
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.object_location import ObjectLocation
from dcp.lake.tables.lake_tables import LakeIdentity, create_lake
from tests.lake.rounds_in_store import commit_file, make_table, write_file
from tests.lake.tables_at import location_of, no_spark

ABFSS = "abfss://c@a.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("root", "table"),
    [
        ("/a b#c?d/", "/a b#c?d/docs"),
        ("//a//b", "/a/b/docs"),
        ("/", "/docs"),
        ("file:/a", "/a/docs"),
        ("file:///a/", "/a/docs"),
        ("FILE:///a", "/a/docs"),
        ("file://localhost/a", "/a/docs"),
        ("file:////a", "/a/docs"),
        ("file:///a%20b%23c%3Fd", "/a b#c?d/docs"),
        ("file:///a b#c?d", "/a b#c?d/docs"),
        ("file:///100%", "/100%/docs"),
        ("file:///a%2520b", "/a%20b/docs"),
        ("s3://b", "s3://b/docs"),
        ("s3://b/", "s3://b/docs"),
        ("s3://b/a", "s3://b/a/docs"),
        ("s3://b/a///", "s3://b/a/docs"),
        ("S3A://b.c-d/a", "s3a://b.c-d/a/docs"),
        ("s3n://b/A b/#?[&=:@", "s3n://b/A b/#?[&=:@/docs"),
        ("gs://b_c/a/", "gs://b_c/a/docs"),
        ("az://c/a/", "az://c/a/docs"),
        ("az://$web/a", "az://$web/a/docs"),
        (f"{ABFSS}/a/", f"{ABFSS}/a/docs"),
        ("abfss://My-Space@onelake.dfs.fabric.microsoft.com/a", None),
        ("hdfs://[::1]:8020/a", "hdfs://[::1]:8020/a/docs"),
        ("hdfs:/a", "hdfs:/a/docs"),
    ],
)
def test_a_root_is_one_place(root: str, table: str | None) -> None:
    """None: the root with the table's name behind it."""
    LakeSettings(root=root)
    location = LakeLocation(root=root)
    assert location.path("docs") == (table or f"{root}/docs")
    is_here = location.path("docs").startswith("/")
    assert location.spark_path("docs") == ("file:" if is_here else "") + location.path("docs")
    assert local_root(root) == (Path(location.path("docs")).parent if is_here else None)
    assert LakeLocation(root=location.root).root == location.root


@pytest.mark.parametrize(
    ("root", "found", "expected"),
    [
        ("s3://", "found '' in the bucket's location", "expected s3://BUCKET/path"),
        ("s3:///a", "found ''", "expected s3://BUCKET/path"),
        ("s3:b/a", "found ''", "expected s3://BUCKET/path"),
        ("s3a:/b/a", "found ''", "expected s3a://BUCKET/path"),
        ("s3://My-Bucket/a", "found 'My-Bucket'", "the bucket in lower-case letters, digits"),
        ("s3://my bucket/a", "found 'my bucket'", "the bucket in lower-case letters, digits"),
        ("s3://my_bucket/a", "found 'my_bucket'", "the bucket in lower-case letters, digits"),
        ("s3://[b/a", "found '[b'", "expected s3://BUCKET/path"),
        ("s3://b:9000/a", "found 'b:9000'", "expected s3://BUCKET/path"),
        ("s3://b?x", "found 'b?x'", "expected s3://BUCKET/path"),
        ("s3://key:secret@b/a", "found a name with '@'", "expected s3://BUCKET/path"),
        ("s3://b/a//c", "found '//' in 's3://b/a//c'", "a path without '//', '.' and '..'"),
        ("s3://b//a", "found '//'", "a path without '//', '.' and '..'"),
        ("s3://b/a/../c", "found '..'", "a path without '//', '.' and '..'"),
        ("s3://b/./a", "found '.'", "a path without '//', '.' and '..'"),
        ("s3://b/a\n", r"found the character '\n'", "printable characters"),
        ("gs://My/a", "found 'My'", "expected gs://BUCKET/path"),
        ("gs://b/a//c", "found '//'", "a path without"),
        ("az://C/a", "found 'C'", "expected az://CONTAINER/path"),
        ("az:///a", "found ''", "expected az://CONTAINER/path"),
        (
            "abfss://c/a",
            "found 'c'",
            "expected abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/path",
        ),
        (f"{ABFSS}/a/../c", "found '..'", "a path without"),
        ("file://host/a", "found 'file://host/a'", "expected file:///folder"),
        ("file:a", "found 'file:a'", "expected file:///folder"),
        ("file://", "found 'file://'", "expected file:///folder"),
        ("file:///a%ff", "no UTF-8", "a folder's path"),
        (" s3://b/a", "found ' s3' before '://'", "expected a scheme"),
        ("~of-nobody-here/a", "found no home", "a path"),
        (
            "https://u:secret@h/a",
            "found the scheme https",
            "expected a folder, or a bucket as s3:/",
        ),
        ("hdfs://u:secret@h/a", "found a password", "expected hdfs://host/path"),
        ("/a\0b", r"found the character '\x00'", "printable characters"),
    ],
)
def test_a_root_that_would_be_several_places_is_refused(
    root: str, found: str, expected: str
) -> None:
    for take in (lambda: LakeSettings(root=root), lambda: LakeLocation(root=root)):
        with pytest.raises(ConfigError) as refused:
            take()
        told = str(refused.value)
        assert told.startswith("lake.root: ") and found in told and expected in told
        assert "\n" not in told and "secret" not in told


def test_a_folder_is_the_same_for_delta_rs_however_it_is_written(tmp_path: Path) -> None:
    for written, name in (("a%20b", "a b"), ("a b#c?d", "a b#c?d"), ("ü%23", "ü#")):
        table = SparkStore(no_spark, LakeLocation(root=f"file://{tmp_path}/{written}")).table("t")
        location = location_of(table)
        (tmp_path / name / "t" / "_delta_log").mkdir(parents=True)
        make_table(location)
        commit_file(location, write_file(location))
        assert len(table.rows("round", "true")) == 4
        assert len(list((tmp_path / name / "t").iterdir())) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["a b", "a b#c?d", "ü#"])


def test_roots_on_s3_differ_in_case_and_slashes_and_are_one_place() -> None:
    places = set()
    prefix = uuid4().hex
    for root in (f"s3://b/{prefix}", f"S3A://b/{prefix}/", f"s3n://b/{prefix}//"):
        location = LakeLocation(root=root, way=lambda _: {}).of_table("t")
        assert isinstance(location, ObjectLocation)
        places.add(location.url)
    assert places == {f"s3://b/{prefix}/t"}
    assert checked_root(f"s3://b/{prefix}/") == f"s3://b/{prefix}"


def test_no_lake_is_made_in_a_table(tmp_path: Path) -> None:
    """VACUUM of the table would remove the lake's files."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    make_table(FolderLocation(tmp_path / "table"))
    identity = LakeIdentity(lake_id="l", bucket="b", bucket_uuid="u", vbucket_count=4)
    for inside in ("table", "table/lake", "table/a/b"):
        store = SparkStore(no_spark, LakeLocation(root=f"{tmp_path}/{inside}"))
        with pytest.raises(LakeError, match=f"in the Delta table {tmp_path}/table, whose VACUUM"):
            create_lake(store, identity)
        assert not (tmp_path / inside / "changes").exists()
    create_lake(SparkStore(no_spark, LakeLocation(root=f"{tmp_path}/tables")), identity)
