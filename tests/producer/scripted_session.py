"""A cluster, and the clients whose sessions with it are written down, for scripts of sessions.

Documents are ``doc-N``, in any vbucket. Time is the recording's.
"""

import json
from collections.abc import Iterable
from typing import Final

from dcp.producer.model.bucket_type import BucketType
from dcp.producer.model.settings import ClusterSettings
from dcp.producer.model.versions import Content, SyncWrite, Version
from dcp.producer.server.cluster import ProducerCluster
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.vocabulary import (
    HelloFeature,
    Opcode,
    OpenFlag,
)
from tests.producer.recorded_client import RecordedClient, Recorder

_BEGAN: Final = 1_700_000_000
PLAIN: Final = (
    HelloFeature.XATTR,
    HelloFeature.SELECT_BUCKET,
    HelloFeature.SNAPPY,
    HelloFeature.JSON,
    HelloFeature.XERROR,
)
COLLECTIONS: Final = (*PLAIN, HelloFeature.COLLECTIONS)
DURABLE: Final = (*PLAIN, HelloFeature.ALT_REQUEST, HelloFeature.SYNC_REPLICATION)
NOOP: Final = (("enable_noop", "true"), ("set_noop_interval", "20"))


class ScriptedSession:
    """A cluster, and the clients that are written down."""

    def __init__(
        self,
        vbuckets: int = 1,
        bucket_type: BucketType = BucketType.COUCHBASE,
        checkpoint_quota_bytes: int = 2**30,
    ) -> None:
        self._recorder: Recorder | None = None
        self.cluster = ProducerCluster(
            ClusterSettings(
                vbuckets=vbuckets,
                seed=vbuckets,
                rules="server",
                bucket_type=bucket_type,
                prepare_extra_bytes=2,
                checkpoint_items=20,
                checkpoint_quota_bytes=checkpoint_quota_bytes,
                clock=lambda: _BEGAN + (self._recorder.seconds if self._recorder else 0.0),
            )
        )
        self.r = self._recorder = Recorder(self.cluster)
        self._written = 0

    # --- the server

    def write(self, *numbers: int, collection: int = 0, value: bytes | None = None) -> None:
        """Write documents back to back; streams hear of them as of one burst."""
        self.r.note({"mark": f"writer: {len(numbers)} docs"})
        with self.cluster.batch():
            for number in numbers:
                self._written += 1
                body = b'{"n":%d}' % self._written if value is None else value
                self.cluster.set(b"doc-%d" % number, body, collection=collection)
        self.r.spread()
        self.wait(0.5)

    def delete(self, *numbers: int, collection: int = 0) -> None:
        self.r.note({"mark": "writer: deletes"})
        for number in numbers:
            self.cluster.delete(b"doc-%d" % number, collection=collection)
            self.r.spread()
        self.wait(0.5)

    def prepare(self, *numbers: int, aborts: bool = False) -> None:
        """Let writes be prepared, and then committed or given up."""
        self.r.note({"mark": "writer: durable writes"})
        vbucket = self.cluster.bucket.vbuckets[0]
        for number in numbers:
            seqno, key = self.cluster.high_seqno(0) + 1, b"doc-%d" % number
            newest = vbucket.data.newest.of_key(key, 0)
            rev = 1 if newest is None else newest.rev + 1
            cas = (_BEGAN << 30) + seqno
            for opcode, at in (
                (Opcode.DCP_PREPARE, seqno),
                (Opcode.DCP_ABORT if aborts else Opcode.DCP_MUTATION, seqno + 1),
            ):
                is_prepare = opcode == Opcode.DCP_PREPARE
                write = SyncWrite(level=1) if is_prepare else SyncWrite(seqno)
                value = b"" if opcode == Opcode.DCP_ABORT else b'{"durable":%d}' % number
                content = Content(value, 0 if not value else 1, 0, 0, opcode, 0, write)
                version = Version(0, key, content, seqno=at, rev=rev, cas=cas, collection=0)
                self.cluster.take_versions(0, [version])
                self.r.spread()
        self.wait(0.5)

    def to_disk(self) -> None:
        """Let memory forget what is on disk and nobody reads."""
        for vbucket in self.cluster.bucket.vbuckets:
            vbucket.data.checkpoints.expel()

    def wait(self, seconds: float) -> None:
        self.r.seconds += seconds
        self.r.spread()

    # --- clients

    def open(
        self,
        features: Iterable[int] = PLAIN,
        flags: int = 0,
        controls: Iterable[tuple[str, str]] = NOOP,
        mechanism: str = "PLAIN",
    ) -> RecordedClient:
        """Open a DCP connection."""
        client = self.r.connect()
        self.r.log_in(client, mechanism, tuple(features))
        opened = m.DcpOpen(client.name.encode(), int(OpenFlag.PRODUCER | flags))
        self.r.ask(client, opened, Opcode.DCP_OPEN)
        for control in controls:
            self.control(client, *control)
        return client

    def log_in(self, features: Iterable[int] = PLAIN) -> RecordedClient:
        """Open a connection that is none of DCP."""
        client = self.r.connect()
        self.r.log_in(client, "PLAIN", tuple(features))
        return client

    def control(self, client: RecordedClient, name: str, value: str) -> None:
        self.r.ask(client, m.DcpControl(name.encode(), value.encode()), Opcode.DCP_CONTROL)

    def stream(
        self,
        client: RecordedClient,
        vbucket: int = 0,
        flags: int = 0,
        end: int = END_OF_TIME,
        sid: int | None = None,
        **filter_: object,
    ) -> None:
        if sid is not None:
            filter_ = filter_ | {"sid": sid}
        value = json.dumps(filter_).encode() if filter_ else b""
        self.r.stream(client, vbucket, flags=flags, end=end, value=value, stream_id=sid)
        self.wait(0.3)

    def resume(
        self,
        client: RecordedClient,
        start: int,
        snapshot: tuple[int, int] | None = None,
        vb_uuid: int | None = None,
        flags: int = 0,
        end: int = END_OF_TIME,
    ) -> None:
        """Ask for a stream from anywhere."""
        log = self.cluster.failover_log(0)
        uuid = log.entries[0].vb_uuid if vb_uuid is None else vb_uuid
        first, last = snapshot or (start, start)
        body = m.StreamRequest(flags, start, end, uuid, first, last)
        self.r.ask(client, body, Opcode.DCP_STREAM_REQ)
        self.wait(0.3)

    def close_stream(self, client: RecordedClient, vbucket: int = 0) -> None:
        self.r.ask(client, m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=vbucket)
        self.wait(0.3)

    def ask(self, client: RecordedClient, body: m.Body, opcode: int, vbucket: int = 0) -> None:
        self.r.ask(client, body, opcode, vbucket=vbucket)
        self.wait(0.01)

    def acknowledge(self, client: RecordedClient, count: int | None = None) -> None:
        self.r.acknowledge(client, max(1, client.unacked_bytes) if count is None else count)
        self.wait(0.3)

    def leave(self, *clients: RecordedClient) -> None:
        for client in clients:
            self.wait(0.5)
            self.r.close(client)
