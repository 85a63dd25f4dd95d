"""KV semantics over real sockets: CAS, expiry, tombstones, datatypes, limits."""

from collections.abc import Callable

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.writes.document_writer import DocumentWriter
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.versions import Content, Version
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.json_text import is_json
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode, Status
from dcp.wire.xattr import join_xattrs
from tests.producer.conftest import Clock
from tests.producer.raw_client import PLAIN_FEATURES, RawClient

Connect = Callable[[ProducerCluster], RawClient]


@pytest.fixture
def kv(cluster: ProducerCluster, connect: Connect) -> RawClient:
    return connect(cluster).log_in(PLAIN_FEATURES)


def _store(kv: RawClient, opcode: Opcode, key: bytes, value: bytes = b"{}", cas: int = 0) -> Frame:
    return kv.call(m.Store(key, value), opcode, cas=cas)


@pytest.mark.parametrize(
    ("exists", "opcode", "cas", "status"),
    [
        (False, Opcode.SET, "none", Status.SUCCESS),
        (False, Opcode.SET, "wrong", Status.KEY_ENOENT),
        (False, Opcode.ADD, "none", Status.SUCCESS),
        (False, Opcode.ADD, "wrong", Status.EINVAL),
        (False, Opcode.REPLACE, "none", Status.KEY_ENOENT),
        (False, Opcode.DELETE, "none", Status.KEY_ENOENT),
        (False, Opcode.GET, "none", Status.KEY_ENOENT),
        (False, Opcode.TOUCH, "none", Status.KEY_ENOENT),
        (True, Opcode.SET, "none", Status.SUCCESS),
        (True, Opcode.SET, "right", Status.SUCCESS),
        (True, Opcode.SET, "wrong", Status.KEY_EEXISTS),
        (True, Opcode.ADD, "none", Status.KEY_EEXISTS),
        (True, Opcode.ADD, "right", Status.EINVAL),
        (True, Opcode.REPLACE, "none", Status.SUCCESS),
        (True, Opcode.REPLACE, "right", Status.SUCCESS),
        (True, Opcode.REPLACE, "wrong", Status.KEY_EEXISTS),
        (True, Opcode.DELETE, "none", Status.SUCCESS),
        (True, Opcode.DELETE, "right", Status.SUCCESS),
        (True, Opcode.DELETE, "wrong", Status.KEY_EEXISTS),
        (True, Opcode.GET, "none", Status.SUCCESS),
        (True, Opcode.TOUCH, "none", Status.SUCCESS),
    ],
)
def test_command_table(
    cluster: ProducerCluster,
    kv: RawClient,
    exists: bool,
    opcode: Opcode,
    cas: str,
    status: Status,
) -> None:
    current = _store(kv, Opcode.SET, b"k").cas if exists else 5
    before = cluster.high_seqno(0)
    given = {"none": 0, "right": current, "wrong": current + 1}[cas]
    bodies: dict[Opcode, m.Body] = {
        Opcode.GET: m.KeyOnly(b"k"),
        Opcode.DELETE: m.KeyOnly(b"k"),
        Opcode.TOUCH: m.Touch(b"k", 100),
    }
    answer = kv.call(bodies.get(opcode, m.Store(b"k", b"[1]")), opcode, cas=given)
    assert answer.status == status
    changes = status is Status.SUCCESS and opcode is not Opcode.GET
    assert cluster.high_seqno(0) == before + changes
    if changes:
        assert answer.cas > current or not exists


def test_get_returns_what_set_stored(kv: RawClient) -> None:
    stored = kv.call(m.Store(b"k", b'{"a":1}', flags=7), Opcode.SET)
    answer = kv.call(m.KeyOnly(b"k"), Opcode.GET)
    assert decode(answer) == m.GetAnswer(7, b'{"a":1}')
    assert (answer.cas, answer.datatype) == (stored.cas, Datatype.JSON)


def test_seqno_and_branch_are_told_only_where_negotiated(
    cluster: ProducerCluster, connect: Connect
) -> None:
    kv = connect(cluster).log_in((HelloFeature.MUTATION_SEQNO,))
    body = kv.ok(m.Store(b"k", b"1"), Opcode.SET)
    assert body == m.MutationAnswer(cluster.failover_log(0).current_uuid, 1)


def test_rev_goes_on_over_a_deletion_and_cas_grows(cluster: ProducerCluster) -> None:
    first = cluster.set(b"k", b"1")
    deleted = cluster.delete(b"k")
    again = cluster.set(b"k", b"2")
    assert [d.rev for d in (first, deleted, again)] == [1, 2, 3]
    assert first.cas < deleted.cas < again.cas
    assert cluster.state_at(0, 1)[b"k"].value == b"1"
    assert cluster.state_at(0, 2) == {}
    assert cluster.state_at(0, 3) == {b"k": again}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (0, 0),
        (60, 1_700_000_060),
        (30 * 24 * 3600, 1_700_000_000 + 30 * 24 * 3600),
        (30 * 24 * 3600 + 1, 30 * 24 * 3600 + 1),
        (1_800_000_000, 1_800_000_000),
        (2**32 - 1, 2**32 - 1),
    ],
)
def test_expiry_is_relative_up_to_thirty_days(
    cluster: ProducerCluster, given: int, stored: int
) -> None:
    assert cluster.set(b"k", b"1", expiry=given).expiry == stored


def test_due_documents_become_expirations(cluster: ProducerCluster, clock: Clock) -> None:
    cluster.set(b"a", b"1", expiry=10)
    cluster.set(b"b", b"1", expiry=20)
    cluster.set(b"c", b"1", expiry=10)
    cluster.touch(b"c", 0)
    assert cluster.expire_due(clock.now + 9) == 0
    assert cluster.expire_due(clock.now + 10) == 1
    assert set(cluster.state_at(0, cluster.high_seqno(0))) == {b"b", b"c"}
    assert cluster.expire_due(clock.now + 10) == 0


def test_documents_of_another_server_expire(cluster: ProducerCluster, clock: Clock) -> None:
    due = Content(b"1", expiry=int(clock.now) + 10)
    taken = [
        Version(0, key, due, seqno=seqno, rev=1, cas=9) for seqno, key in ((1, b"a"), (2, b"b"))
    ]
    cluster.take_versions(0, taken)
    cluster.delete(b"b")
    assert cluster.expire_due(clock.now + 10) == 1
    assert cluster.state_at(0, 4) == {}


def test_a_touch_that_changes_nothing_is_no_write(cluster: ProducerCluster) -> None:
    """With the expiry that it has, also where that is none."""
    cluster.set(b"k", b"1")
    touched = [cluster.touch(b"k", expiry) for expiry in (0, 50, 50, 0, 0)]
    assert [(each.seqno, each.rev, each.expiry > 0) for each in touched] == [
        (1, 1, False),
        (2, 2, True),
        (2, 2, True),
        (3, 3, False),
        (3, 3, False),
    ]
    assert cluster.high_seqno(cluster.vbucket_of(b"k")) == 3


def test_a_due_document_expires_when_it_is_touched(
    cluster: ProducerCluster, kv: RawClient, clock: Clock
) -> None:
    cluster.set(b"k", b"1", expiry=10)
    clock.now += 11
    assert kv.call(m.KeyOnly(b"k"), Opcode.GET).status == Status.KEY_ENOENT
    assert cluster.high_seqno(0) == 2
    assert kv.call(m.Store(b"k", b"2"), Opcode.ADD).status == Status.SUCCESS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{}", True),
        (b' {"a": [1, 2.5e10, "\xc3\xa9", null]} ', True),
        (b"1" * 5000, True),
        (b'"text"', True),
        (b"", False),
        (b"NaN", False),
        (b"[Infinity]", False),
        (b"{", False),
        (b"{} {}", False),
        (b'{"a":"\xff"}', False),
        (b"\xef\xbb\xbf{}", False),
        (b"[" * 100_000 + b"]" * 100_000, False),
    ],
)
def test_json_is_recognised(value: bytes, expected: bool) -> None:
    assert is_json(value) is expected


def test_xattrs_are_stored_and_hidden_from_get(kv: RawClient, cluster: ProducerCluster) -> None:
    value = join_xattrs([(b"_sync", b"{}"), (b"meta", b"1")], b'{"a":1}')
    stored = kv.call(m.Store(b"k", value), Opcode.SET, datatype=int(Datatype.XATTR))
    assert stored.status == Status.SUCCESS
    assert cluster.get(b"k").datatype == Datatype.XATTR | Datatype.JSON
    assert cluster.get(b"k").body == b'{"a":1}'
    assert decode(kv.call(m.KeyOnly(b"k"), Opcode.GET)) == m.GetAnswer(0, b'{"a":1}')
    cluster.delete(b"k")


@pytest.mark.parametrize("was", [Datatype.XATTR, Datatype.XATTR | Datatype.SNAPPY])
@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.REPLACE])
@pytest.mark.parametrize("given", [Datatype.RAW, Datatype.SNAPPY])
def test_xattrs_outlive_another_body(
    cluster: ProducerCluster, connect: Connect, opcode: Opcode, was: Datatype, given: Datatype
) -> None:
    kv = connect(cluster).log_in((*PLAIN_FEATURES, HelloFeature.SNAPPY))
    xattrs = [(b"_sync", b"{}"), (b"meta", b"1")]
    first, body = join_xattrs(xattrs, b'{"a":1}'), b"no JSON"
    cluster.set(b"k", deflate(first) if was & Datatype.SNAPPY else first, datatype=was)
    value = deflate(body) if given else body
    assert kv.call(m.Store(b"k", value), opcode, datatype=int(given)).status == Status.SUCCESS
    found = cluster.get(b"k")
    assert (found.value, found.datatype) == (join_xattrs(xattrs, body), Datatype.XATTR)
    cluster.delete(b"k")
    assert kv.call(m.Store(b"k", value), Opcode.SET, datatype=int(given)).status == Status.SUCCESS
    assert cluster.get(b"k").datatype == given, "found xattrs of a document that is gone"
    cluster.delete(b"k")


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"", Status.XATTR_EINVAL),
        (b"\0\0\0", Status.XATTR_EINVAL),
        (b"\0\0\0\x09x", Status.XATTR_EINVAL),
        (join_xattrs([(b"$vir", b"1")], b""), Status.XATTR_EINVAL),
        (join_xattrs([(b"a", b"1"), (b"$document", b"1")], b"{}"), Status.XATTR_EINVAL),
        (join_xattrs([(b".a", b"1")], b""), Status.XATTR_EINVAL),
        (join_xattrs([(b"\x01a", b"1")], b""), Status.XATTR_EINVAL),
        (join_xattrs([(b"_", b"1")], b""), Status.XATTR_EINVAL),
        (join_xattrs([(b"a", b"")], b""), Status.XATTR_EINVAL),
        (join_xattrs([(b"a", b"no json")], b""), Status.XATTR_EINVAL),
        (join_xattrs([(b"a$b", b"1"), (b"_s", b"{}"), (b"9", b"[]")], b""), Status.SUCCESS),
        (join_xattrs([("é".encode(), b"null")], b"{}"), Status.SUCCESS),
        (b"\0\0\0\0", Status.SUCCESS),
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_which_xattrs_are_stored(
    cluster: ProducerCluster,
    connect: Connect,
    value: bytes,
    status: Status,
    *,
    is_compressed: bool,
) -> None:
    kv = connect(cluster).log_in((*PLAIN_FEATURES, HelloFeature.SNAPPY))
    datatype = Datatype.XATTR | (Datatype.SNAPPY if is_compressed else 0)
    sent = deflate(value) if is_compressed else value
    answer = kv.call(m.Store(b"k", sent), Opcode.SET, datatype=int(datatype))
    assert answer.status == status
    found = kv.call(m.KeyOnly(b"k"), Opcode.GET).status
    assert found == (Status.SUCCESS if status is Status.SUCCESS else Status.KEY_ENOENT)


def test_limits(kv: RawClient, cluster: ProducerCluster) -> None:
    assert _store(kv, Opcode.SET, b"k" * 250).status == Status.SUCCESS
    assert _store(kv, Opcode.SET, b"k" * 251).status == Status.EINVAL
    assert _store(kv, Opcode.SET, b"").status == Status.EINVAL
    assert _store(kv, Opcode.SET, b"k", b"x" * (20 * 1024 * 1024)).status == Status.SUCCESS
    assert _store(kv, Opcode.SET, b"k", b"x" * (20 * 1024 * 1024 + 1)).status == Status.E2BIG
    assert cluster.high_seqno(0) == 2
    for key in (b"", b"k" * 251):
        with pytest.raises(RefusedError, match=f"found {len(key)} bytes, expected 1 to 250"):
            cluster.set(key, b"1")


def test_collections_put_an_id_before_the_key(cluster: ProducerCluster, connect: Connect) -> None:
    kv = connect(cluster).log_in()
    assert kv.call(m.Store(b"\0k", b"1"), Opcode.SET).status == Status.SUCCESS
    assert cluster.get(b"k").value == b"1"
    refused = kv.call(m.Store(b"\x08k", b"1"), Opcode.SET)
    assert (refused.status, refused.value) == (
        Status.UNKNOWN_COLLECTION,
        b'{"error":{"context":"Unknown scope or collection in operation"},"manifest_uid":"0"}',
    )


def test_datatypes_must_have_been_negotiated(cluster: ProducerCluster, connect: Connect) -> None:
    kv = connect(cluster).log_in(())
    answer = kv.call(m.Store(b"k", b"{}"), Opcode.SET, datatype=int(Datatype.JSON))
    assert answer.status == Status.EINVAL
    assert kv.call(m.Store(b"k", b"{}"), Opcode.SET).status == Status.SUCCESS
    assert kv.call(m.KeyOnly(b"k"), Opcode.GET).datatype == 0


def test_a_value_that_cannot_be_read_keeps_no_other_from_expiring(
    make_cluster: Callable[..., ProducerCluster], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of its vbucket, not of later ones; and it expires when it can be read again."""
    cluster = make_cluster(vbuckets=2)
    keys = [b"k%d" % n for n in range(20)]
    for n, key in enumerate(keys):
        cluster.set(key, b"1", expiry=10 + n)
    bucket = cluster.bucket
    assert all(vbucket.data.high_seqno > 1 for vbucket in bucket.vbuckets)
    expire, noted = DocumentWriter._expire, set[int]()

    def failing(store: DocumentWriter, due: Version, now: float) -> None:
        if due.key == keys[0]:
            raise OSError("cannot be read")
        expire(store, due, now)

    with monkeypatch.context() as patched, bucket.lock:
        patched.setattr(DocumentWriter, "_expire", failing)
        patched.setattr(bucket.writes, "wrote", noted.add)
        with pytest.raises(OSError, match="cannot be read"):
            bucket.expire_due(clock.now + 100)
    assert noted == {0, 1}
    with bucket.lock:
        for vbucket in (0, 1):
            bucket.writes.wrote(vbucket)
        assert bucket.expire_due(clock.now + 100) == 1
        assert bucket.expire_due(clock.now + 100) == 0
    assert not any(cluster.state_at(v, cluster.high_seqno(v)) for v in (0, 1))
