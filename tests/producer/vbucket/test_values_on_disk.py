"""Buckets that keep no values in memory which are on disk, as a relay does: nobody notices."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.model.versions import Content, Version
from dcp.server.storage.stored_items import STORED_FLAVOUR
from dcp.server.vbucket.stored_version import StoredVersion
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire import messages as m
from dcp.wire.vocabulary import Datatype, Opcode, Status
from dcp.wire.xattr import join_xattrs
from tests.producer.conftest import Clock
from tests.producer.one_vbucket import flush
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
KIB: Final = b"x" * 1024
CHOSEN: Final[dict[str, Any]] = {"vbuckets": 1, "keeps_values": False, "record_branches": False}


def _without_values(cluster: ProducerCluster) -> set[bytes]:
    versions = cluster.bucket.vbuckets[0].data.newest.versions
    return {version.key for version in versions if isinstance(version, StoredVersion)}


@pytest.mark.parametrize("on_disk", [False, True])
def test_commands_read_values_from_disk(
    make_cluster: MakeCluster, folder: Path, clock: Clock, *, on_disk: bool
) -> None:
    cluster = make_cluster(**CHOSEN, data_folder=folder if on_disk else None)
    value = join_xattrs([(b"_sync", b"1"), (b"user", b"2")], KIB)
    with_xattrs = cluster.set(b"xattrs", value, datatype=int(Datatype.XATTR))
    old = cluster.set(b"old", KIB, flags=9)
    cluster.set(b"due", KIB, expiry=10)
    flush(cluster)
    assert _without_values(cluster) == {b"xattrs", b"old", b"due"}
    for written in (old, with_xattrs):
        assert cluster.get(written.key).wire(STORED_FLAVOUR) == written.wire(STORED_FLAVOUR)
    touched = cluster.touch(b"old", 1000)
    assert (touched.value, touched.flags, touched.rev) == (KIB, 9, old.rev + 1)
    buried = cluster.delete(b"xattrs")
    assert buried.value == join_xattrs([(b"_sync", b"1")], b"")
    clock.now += 10
    assert cluster.expire_due() == 1


def test_a_value_that_cannot_be_read_is_refused_for_now(
    make_cluster: MakeCluster,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where the disk of a server fails; the connection goes on."""
    cluster = make_cluster(**CHOSEN, data_folder=folder)
    cluster.set(b"k", KIB)
    flush(cluster)
    client = connect(cluster).log_in()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", _broken)
        refusal = client.call(m.KeyOnly(b"\0k"), Opcode.GET)
        assert refusal.status == Status.ETMPFAIL
        assert b"broken" not in refusal.value
        assert b"server's log" in refusal.value
    assert "vbucket 0: GET is answered ETMPFAIL: [Errno 5] broken: " in caplog.text
    assert "vb_0.log" in caplog.text
    assert client.call(m.KeyOnly(b"\0k"), Opcode.GET).status == Status.SUCCESS


def _broken(*_: object) -> bytes:
    raise OSError(errno.EIO, "broken")


def test_a_version_without_its_value_makes_no_frame() -> None:
    version = Version(0, b"k", Content(b"v", flags=3), seqno=5, rev=2, cas=9)
    stored = StoredVersion.of(version)
    assert (stored.seqno, stored.rev, stored.cas, stored.flags) == (5, 2, 9, 3)
    with pytest.raises(AssertionError, match="seqno 5: found no value"):
        stored.wire(0)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "get", "get", "delete", "cut", "compact"]),
        st.integers(0, 4),
    ),
    max_size=40,
)


@given(steps=_STEPS)
def test_nobody_notices(steps: list[tuple[str, int]]) -> None:
    settings = ClusterSettings(vbuckets=1, keeps_values=False, record_branches=False)
    vbucket = Vbucket(0, iter(range(1, 1000)).__next__, settings)
    writer = DocumentWriter(vbucket.documents)
    states: list[dict[bytes, bytes]] = [{}]
    for number, (step, amount) in enumerate(steps):
        key, held = b"%d" % amount, dict(states[-1])
        match step:
            case "set":
                held[key] = b"%d" % number + KIB
                writer.store(key, checked(held[key]), now=1.0)
                states.append(held)
            case "delete" if key in held:
                del held[key]
                writer.delete(key, now=1.0)
                states.append(held)
            case "get" if key in held:
                assert vbucket.documents.get(key, now=1.0).value == held[key]
            case "compact":
                vbucket.data.persistence.purge(0)
            case "cut":
                vbucket.crash(amount)
                del states[vbucket.data.high_seqno + 1 :]
        vbucket.data.flush_batch()
        assert vbucket.data.high_seqno == len(states) - 1
        newest = vbucket.data.newest.versions
        assert all(isinstance(each, StoredVersion) for each in newest if each.is_mutation)
    for key, value in states[-1].items():
        assert vbucket.documents.get(key, now=1.0).value == value
