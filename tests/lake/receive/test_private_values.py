"""Privacy rules: what a task gives to Spark, and that no file of a lake ever has the values."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest

from dcp.errors import ConfigError, QualityError, SecretError
from dcp.lake.change_log.control import RequestAction
from dcp.lake.config.privacy_settings import PrivacySettings
from dcp.lake.config.settings import Settings
from dcp.lake.receive.private_values import DROPPED, hashes_with, masks
from dcp.lake.run.control_requests import ask
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import run
from dcp.lake.verify.compare import verify
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.versions import Content, Version
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype
from dcp.wire.xattr import join_xattrs
from tests.lake.figures import figures_of
from tests.lake.receiving import QUICK_ROUND, RoundsInProcess, item_rows, lake_of, settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY: Final = "a key of hashes, long enough"
VBUCKETS: Final = 4
PAGE: Final = Path(__file__).parents[3] / "docs" / "howto" / "privacy.md"
SECRET: Final = "S3CR3T-T3XT"
JSON, SNAPPY, XATTR = Datatype.JSON, Datatype.SNAPPY, Datatype.XATTR


@pytest.fixture(autouse=True)
def hash_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCPLAKE_HASH_KEY", KEY)


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS)) as cluster:
        cluster.create_scope("s")
        cluster.create_collection("s", "users")
        yield cluster


def hash_of(text: str) -> str:
    key_id = blake2b(KEY.encode(), digest_size=4).hexdigest()
    digest = blake2b(text.encode(), key=KEY.encode(), digest_size=16).hexdigest()
    return f"{key_id}:{digest}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'"text"', b'"***"'),
        (b"12.5", b"0"),
        (b"-1", b"0"),
        (b"true", b"false"),
        (b"false", b"false"),
        (b"null", b"null"),
        (b'{"a":1}', b"{}"),
        (b"[1]", b"[]"),
    ],
)
def test_a_mask_keeps_the_type(value: bytes, expected: bytes) -> None:
    assert masks([value]) == [expected]


def test_equal_texts_have_equal_hashes_however_they_are_written() -> None:
    hashes = hashes_with(KEY.encode())
    expected = json.dumps(hash_of("é/1")).encode()
    written = [each.encode() for each in ('"é/1"', '"\\u00e9/1"', '"\\u00E9\\/1"')]
    assert hashes(written) == [expected] * 3
    [number, text, null] = hashes([b"12", b'"12"', b"null"])
    assert number == text, "a number's text, so that joins hold"
    assert null == b"null"
    assert hashes_with(b"another key, also long")([b'"a"']) != hashes([b'"a"'])
    assert hashes_with(b"k" * 100)([b'"a"']) != hashes_with(b"k" * 64)([b'"a"'])


def settings_of(cluster: ProducerCluster, folder: Path, **privacy: Any) -> Settings:
    return settings_for(cluster, folder, privacy=privacy, round=QUICK_ROUND)


def rows_by_key(rows: list[dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {row["key"]: row for row in item_rows(rows)}


def value_of(row: Mapping[str, Any]) -> Any:
    return json.loads(row["value"]) if row["value"] else row["value"]


def test_rules_hold_by_collection_and_path(cluster: ProducerCluster, tmp_path: Path) -> None:
    document = {"email": SECRET, "n": 1, "card": {"number": 42, "kind": "x"}, "ok": True}
    for collection in ("_default._default", "s.users"):
        _, _, name = collection.encode().partition(b".")
        cluster.set(b"in " + name, json.dumps(document).encode(), collection=collection)
        cluster.set(b"secret " + name, b'{"a": "%s"}' % SECRET.encode(), collection=collection)
        cluster.set(b"text " + name, SECRET.encode(), collection=collection)
    rules = {
        "s.users:$.email": "hash",
        "*:$.card.number": "mask",
        "s:/^secret /": "drop",
        "_default:$.email": "drop",
    }
    rounds = RoundsInProcess(settings_of(cluster, tmp_path, rules=rules))
    found = rows_by_key(rounds.run())
    card = {"number": 0, "kind": "x"}
    assert value_of(found["in users"]) == document | {"email": hash_of(SECRET), "card": card}
    del document["email"]
    assert value_of(found["in _default"]) == document | {"card": card}
    assert value_of(found["secret users"]) == b""
    assert value_of(found["secret _default"]) == {"a": SECRET}
    for key in ("text users", "text _default"):
        row = found[key]
        assert (row["value"], row["detail"], row["datatype"]) == (b"", DROPPED, 0)
        assert row["cas"] and row["seqno"]

    # A collection that begins while the round goes on.
    cluster.create_collection("s", "more")
    cluster.set(b"in more", b'{"card": {"number": 1}, "email": "x"}', collection="s.more")
    plan = rounds.plan()
    cluster.create_scope("t")
    for scope in ("s", "t"):
        cluster.create_collection(scope, "late")
        cluster.set(b"secret " + scope.encode(), b'{"a": 1}', collection=f"{scope}.late")
    found = rows_by_key(rounds.run(plan) + (rounds.run() if rounds.plan() else []))
    assert value_of(found["in more"]) == {"card": {"number": 0}, "email": "x"}
    assert value_of(found["secret s"]) == b""
    assert value_of(found["secret t"]) == {"a": 1}


@pytest.fixture
def as_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server send values as it holds them, whatever they are."""
    monkeypatch.setattr(Version, "_value_for", lambda version, _: (version.value, version.datatype))


def put(cluster: ProducerCluster, key: bytes, value: bytes, datatype: int) -> None:
    vbucket = cluster.vbucket_of(key)
    seqno = cluster.high_seqno(vbucket) + 1
    content = Content(value, datatype)
    version = Version(vbucket, key, content, seqno=seqno, rev=seqno, cas=(seqno + 1) << 16)
    cluster.take_versions(vbucket, [version])


@pytest.mark.usefixtures("as_held")
def test_xattrs_and_compressed_values(cluster: ProducerCluster, tmp_path: Path) -> None:
    pairs = [(b"who", b'{"name": "%s", "n": 1}' % SECRET.encode()), (b"x", b"1")]
    value = join_xattrs(pairs, b'{"email": "%s"}' % SECRET.encode())
    put(cluster, b"both", value, JSON | XATTR)
    put(cluster, b"packed", deflate(value), JSON | XATTR | SNAPPY)
    put(cluster, b"broken", deflate(value)[:-3], JSON | XATTR | SNAPPY)
    rules = {"*:xattrs.who.name": "mask", "*:$.email": "drop"}
    rounds = RoundsInProcess(settings_of(cluster, tmp_path, rules=rules))
    found = rows_by_key(rounds.run())
    for key in ("both", "packed"):
        assert json.loads(found[key]["xattrs"]) == {"who": {"name": "***", "n": 1}, "x": 1}
        assert value_of(found[key]) == {}
    broken = found["broken"]
    assert (broken["value"], broken["xattrs"], broken["detail"]) == (b"", None, DROPPED)
    only_xattrs = RoundsInProcess(settings_of(cluster, tmp_path, rules={"*:xattrs": "drop"}))
    found = rows_by_key(only_xattrs.run())
    assert found["both"]["xattrs"] is None
    assert value_of(found["both"]) == {"email": SECRET}
    assert found["broken"]["value"] == b"", "its xattrs are in it"


@pytest.mark.usefixtures("as_held")
def test_what_is_written_oddly_hides_nothing(cluster: ProducerCluster, tmp_path: Path) -> None:
    body = b'{"email": "%s"}' % SECRET.encode()
    hidden = {
        b"no UTF-8": b'{"name": "%s\xff"}' % SECRET.encode(),
        b"more behind": b'{"name": "%s"} x' % SECRET.encode(),
        b"NaN": b'{"name": "%s", "t": NaN}' % SECRET.encode(),
    }
    for key, who in hidden.items():
        put(cluster, key, join_xattrs([(b"who", who)], b"{}"), JSON | XATTR)
    staged = b'{"op": {"stgd": %s}}' % body
    put(cluster, b"staged", join_xattrs([(b"txn", staged)], body), JSON | XATTR)
    for key in (b"secret:\xff", b"\\xsecret:"):
        put(cluster, key, body, JSON)
    long_name = b"\0\0\0\x2d\0\0\0\x29" + SECRET.encode() + b"-" * 26 + b"\x00{}\0"
    put(cluster, b"long name", long_name, JSON | XATTR)
    rules = {
        "*:xattrs.who.name": "drop",
        "*:$.email": "drop",
        "*:/secret:/": "drop",
        "*:/long/": "drop",
    }
    settings = settings_of(cluster, tmp_path, rules=rules)
    settings = replace(settings, filter=replace(settings.filter, system_xattrs=True))
    rows = item_rows(RoundsInProcess(settings).run())
    assert len(rows) == 7
    for row in rows:
        assert SECRET not in str(dict(row)), row["key"]
        assert row["detail"] == (
            DROPPED if row["key"].encode() in {*hidden, b"long name"} else None
        )


def test_the_narrowest_rule_for_a_key_holds(cluster: ProducerCluster, tmp_path: Path) -> None:
    cluster.set(b"secret:1", b'{"a": 1}', collection="s.users")
    rules = {"s.users:/^secret:/": "drop", "*:/^secret/": "mask"}
    [row] = item_rows(RoundsInProcess(settings_of(cluster, tmp_path, rules=rules)).run())
    assert row["value"] == b""


@pytest.mark.parametrize("unparsable", ["keep", "fail"])
def test_what_cannot_be_parsed_is_kept_or_ends_the_round(
    cluster: ProducerCluster, tmp_path: Path, unparsable: str
) -> None:
    cluster.set(b"text", b"no JSON")
    rules = {"_default:$.a": "drop"}
    settings = settings_of(cluster, tmp_path, rules=rules, unparsable=unparsable)
    rounds = RoundsInProcess(settings)
    if unparsable == "keep":
        row = rows_by_key(rounds.run())["text"]
        assert (row["value"], row["detail"]) == (b"no JSON", None)
        return
    with pytest.raises(QualityError, match=", collection 0x0: found a value that cannot be parsed"):
        rounds.run()


def test_documents_of_one_column_are_edited_each_in_its_way(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcp.lake.receive.private_values.DOCUMENT_BYTES", 100)
    secret = SECRET.encode()
    values = {
        "plain": b'{ "a": "%s" , "n" : 1.50 }' % secret,
        "twice": b'{"a": "%s", "a": "%s"}' % (secret, secret),
        "escaped": b'{"\\u0061": "%s"}' % secret,
        "elsewhere": b'{ "b": {"a": 1} }',
        "no JSON": b'{"a": "%s"' % secret,
        "too large": b'{"a": 1, "pad": "%s"}' % (b"x" * 80),
    }
    for key, value in values.items():
        cluster.set(key.encode(), value)
    settings = settings_of(cluster, tmp_path, rules={"_default:$.a": "hash"})
    found = rows_by_key(RoundsInProcess(settings).run())
    hashed = hash_of(SECRET).encode()
    assert found["plain"]["value"] == b'{ "a": "%s" , "n" : 1.50 }' % hashed
    assert value_of(found["twice"]) == value_of(found["escaped"]) == {"a": hashed.decode()}
    assert found["elsewhere"]["value"] == values["elsewhere"]
    for key in ("no JSON", "too large"):
        row = found[key]
        assert (row["value"], row["detail"], row["datatype"]) == (b"", DROPPED, 0)


def test_a_task_without_the_key_says_so(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DCPLAKE_HASH_KEY")
    rounds = RoundsInProcess(settings_of(cluster, tmp_path, rules={"*:$.a": "hash"}))
    cluster.set(b"a", b"{}")
    why = r"privacy\.hash_key_env: found a key of 0 characters"
    with pytest.raises(SecretError, match=why):
        rounds.run()
    with pytest.raises(SecretError, match=why):
        run(rounds.settings, once=True)
    assert not Path(rounds.settings.lake.root).exists(), "the run ends before it makes a lake"
    with pytest.raises(SecretError, match=why):
        preview(rounds.settings)


def test_a_name_that_the_bucket_lacks_is_refused(cluster: ProducerCluster, tmp_path: Path) -> None:
    settings = settings_of(cluster, tmp_path, rules={"s.user:$.a": "drop"})
    with pytest.raises(ConfigError, match=r"privacy.rules: found 's.user' .*'s.users'"):
        preview(settings)


def test_the_documents_of_the_page(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    [toml], [python] = blocks(page, "toml"), blocks(page, "python")
    before, after = map(json.loads, blocks(page, "json"))
    rules = tomllib.loads(toml)["privacy"]["rules"]
    monkeypatch.setenv("DCPLAKE_HASH_KEY", "an example's key, never use it")
    cluster.create_scope("shop")
    cluster.create_collection("shop", "customers")
    for key in (b"ivy", b"test-1"):
        cluster.set(key, json.dumps(before).encode(), collection="shop.customers")
    found = rows_by_key(RoundsInProcess(settings_of(cluster, tmp_path, rules=rules)).run())
    assert value_of(found["ivy"]) == after
    assert found["test-1"]["value"] == b""
    defined: dict[str, Any] = {}
    exec(python, defined)  # noqa: S102 -- the page's own lines
    for hash_key in (KEY.encode(), b"k" * 100):
        [hashed] = hashes_with(hash_key)([b'"text"'])
        assert hashed == json.dumps(defined["hash_of"]("text", hash_key)).encode()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def require_nowhere(root: Path, secret: str) -> int:
    """Require that no file under a folder has a text, Parquet decoded; return their number."""
    files = [each for each in root.rglob("*") if each.is_file()]
    for file in files:
        assert secret.encode() not in file.read_bytes(), file
        if file.suffix == ".parquet":
            for column in pq.read_table(file).columns:
                assert secret not in str(column.to_pylist()), file
    return len(files)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_file_of_a_lake_has_the_values_and_a_resync_brings_old_rows_under_the_rules(
    cluster: ProducerCluster, tmp_path: Path, spark: "SparkSession"
) -> None:
    for number in range(20):
        document = {"email": f"{SECRET}-{number % 3}", "n": number}
        cluster.set(b"key-%d" % number, json.dumps(document).encode(), collection="s.users")
    key_file = tmp_path / "hash key"  # Spark's workers have the environment of its JVM
    key_file.write_text(KEY)
    settings = settings_of(
        cluster,
        tmp_path,
        rules={"s.users:$.email": "hash", "s.users:$.other": "drop"},
        hash_key_file=str(key_file),
    )
    run(settings, once=True, spark=spark)
    root = Path(settings.lake.root)
    assert require_nowhere(root, SECRET) > 10
    lake = lake_of(settings, spark)
    [users] = [each.table for each in figures_of(lake).replicas if each.table != "docs"]

    def values() -> list[Any]:
        rows = lake_of(settings, spark).table(users).rows("value", "true")
        return [json.loads(row["value"]) for row in rows]

    assert len({value["email"] for value in values()}) == 3, "joins still work"
    assert {value["email"] for value in values()} == {hash_of(f"{SECRET}-{n}") for n in range(3)}
    assert verify(settings, spark=spark).differing == 0

    # A changed rule holds from its round on.
    masking = PrivacySettings(rules={"s.users:$.email": "mask"})
    settings = replace(settings, privacy=masking)
    cluster.set(b"key-0", b'{"email": "%s", "n": 0}' % SECRET.encode(), collection="s.users")
    run(settings, once=True, spark=spark)
    assert [value for value in values() if value["email"] == "***"] == [{"email": "***", "n": 0}]
    ask(settings, RequestAction.RESYNC)
    run(settings, once=True, spark=spark)
    assert {value["email"] for value in values()} == {"***"}
    assert len(values()) == 20
    require_nowhere(root, SECRET)
