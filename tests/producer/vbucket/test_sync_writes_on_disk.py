"""The rest of sync writes after compaction, against a naive list of all writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.sync_writes import abort_of, commit_of
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status, StreamFlag
from tests.producer.durable_requests import FEATURES, MAJORITY
from tests.producer.raw_client import PLAIN_FEATURES, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
Step = tuple[Any, ...]
KEYS = (b"k", b"l")


class Driven:
    """The data of a vbucket and all that was written to it; what is under way is known naively."""

    def __init__(self) -> None:
        self.file = MemoryFile()
        self.data = self._open()
        self.written: list[Version] = []

    def _open(self) -> VbucketData:
        return VbucketData(0, self.file, ClusterSettings(), writes_behind=True)

    def pending(self) -> dict[bytes, Version]:
        found: dict[bytes, Version] = {}
        for version in self.written:
            found.pop(version.key, None)
            if version.opcode == Opcode.DCP_PREPARE:
                found[version.key] = version
        return found

    def write(self, key: bytes, what: str) -> None:
        """Complete the sync write on a key that is under way, or write to it otherwise."""
        seqno, prepare = self.data.high_seqno + 1, self.pending().get(key)
        if prepare is not None:
            complete = abort_of if what == "abort" else commit_of
            self._append(complete(prepare, seqno))
            return
        deletes = what == "delete"
        if what == "set":
            content = Content(b"1")
        else:
            opcode, sync = int(Opcode.DCP_PREPARE), SyncWrite(0, 1, deletes)
            content = Content(b"", expiry=5 * deletes, opcode=opcode, sync=sync)
        self._append(Version(0, key, content, seqno=seqno, rev=1, cas=seqno))

    def _append(self, version: Version) -> None:
        self.data.append(version)
        self.data.flush_batch()
        self.written.append(version)

    def flush(self, back: int) -> None:
        self.data.persistence.flush(max(self.data.high_seqno - back, 0))

    def purge(self, back: int) -> None:
        self.data.persistence.purge(max(self.data.high_seqno - back, 0))

    def compact_while_writing(self, back: int, key: bytes, what: str) -> None:
        """Begin a compaction, write on, and know of its end only then."""
        self.flush(back)
        pending = self.data.persistence.begin_compaction(10, leaves_nothing=True)
        event(f"compaction under way: {pending is not None}")
        self.write(key, what)
        self.write(key, "set")
        if pending is not None:
            self.data.persistence.finish_flush(pending)

    def cut(self, back: int) -> None:
        left = self.data.cut(max(self.data.high_seqno - back, 0))
        self.written = self.written[:left]

    def reopen(self) -> None:
        self.data.persistence.flush()
        self.data.close()
        self.data = self._open()
        self.data.reopen(0)

    def check(self) -> None:
        assert self.data.high_seqno == len(self.written)
        pending = [version.seqno for version in self.data.newest.pending_prepares()]
        assert pending == sorted(version.seqno for version in self.pending().values())
        for key in KEYS:
            held = [v for v in self.written if v.key == key and v.is_document]
            found = self.data.newest.of_key(key)
            if held and held[-1].is_mutation:
                assert found is not None
                assert found.seqno == held[-1].seqno
            else:
                assert found is None or found.is_deleted


keys = st.sampled_from(KEYS)
kinds = st.sampled_from(["set", "store", "delete", "abort"])
writes = st.tuples(st.just("write"), keys, kinds)
backs = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        writes,
        writes,
        writes,
        st.tuples(st.sampled_from(["flush", "purge", "cut"]), backs),
        st.tuples(st.just("compact_while_writing"), backs, keys, kinds),
        st.tuples(st.just("reopen")),
    ),
    max_size=30,
)
_DELETE: Step = ("write", b"k", "delete")
_OTHER: Step = ("write", b"l", "set")


@example([_DELETE, _DELETE, _OTHER, ("flush", 0), ("purge", 0), ("reopen",)])
@example([_DELETE, _DELETE, _OTHER, ("flush", 0), _DELETE, ("purge", 0), ("cut", 1)])
@example([_OTHER, _OTHER, _DELETE, _DELETE, ("compact_while_writing", 0, b"k", "store")])
@given(steps)
def test_what_is_under_way_is_known_whatever_compaction_took(steps: list[Step]) -> None:
    driven = Driven()
    for name, *arguments in steps:
        getattr(driven, name)(*arguments)
        driven.check()
    driven.reopen()
    driven.check()


@pytest.mark.parametrize("is_in_folder", [False, True])
def test_a_durable_deletion_is_purged(
    make_cluster: MakeCluster, connect: Connect, tmp_path: Path, is_in_folder: bool
) -> None:
    """Its prepare and its tombstone go; nobody takes the key for one that is written to."""
    folder = tmp_path / "data" if is_in_folder else None
    cluster = make_cluster(vbuckets=1, data_folder=folder)
    kv = connect(cluster).log_in(FEATURES)
    for body, opcode in ((m.Store(b"k", b"1"), Opcode.SET), (m.KeyOnly(b"k"), Opcode.DELETE)):
        assert kv.call(body, opcode, framing_extras=MAJORITY).status == Status.SUCCESS
    cluster.set(b"last", b"1")
    data = cluster.bucket.vbuckets[0].data
    before = data.durability_at(5)
    with cluster.bucket.lock:
        data.persistence.flush()
    assert cluster.purge_tombstones(0) == 1
    assert (cluster.purge_seqno(0), before) == (4, data.durability_at(5))
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(enable_sync_writes="true")
    dcp.request_stream(0, flags=int(StreamFlag.DISK_ONLY))
    _, *shown, _ = dcp.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert shown == [m.Mutation(b"last", b"1", 5, 1, cache_hint=2)]
    cluster.crash_restart(0)
    kv = connect(cluster).log_in(FEATURES)
    stored = kv.call(m.Store(b"k", b"2"), Opcode.ADD, framing_extras=MAJORITY)
    assert stored.status == Status.SUCCESS
