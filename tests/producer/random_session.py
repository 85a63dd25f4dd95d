"""A random session of several clients with our producer, written down as a transcript.

What may happen is chosen from the seed first (``Happens``), then the steps. Times, keys and values
come from the seed, too: one seed is one transcript, but for the salts and nonces of SASL.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dcp.producer.bucket import failover
from dcp.producer.model.settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from dcp.producer.vbucket.documents import DocumentError
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire import snappy, xattr
from dcp.wire.leb128 import encode_leb128
from dcp.wire.vocabulary import (
    Datatype,
    HelloFeature,
    Opcode,
    OpenFlag,
    StreamFlag,
    VbucketState,
)
from tests.producer.durable_requests import MAJORITY
from tests.producer.recorded_client import RecordedClient, Recorder, TranscriptLine

_KEYS = [b"k%d" % number for number in range(14)]
_GROUPS = (b"vbucket", b"vbucket-seqno", b"vbucket-details", b"failovers", b"dcp", b"uuid")
_BEGAN = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Happens:
    """What a session may hold."""

    vbuckets: int
    collections: bool
    writers: bool
    durable: bool
    forks: bool
    purges: bool
    expiries: bool
    late: bool
    windows: bool
    filters: bool
    ends: bool
    stream_ids: bool
    out_of_order: bool
    rich_values: bool
    expels: bool
    questions: bool

    @classmethod
    def chosen(cls, random: Random) -> "Happens":
        """Choose about half of all."""

        def some(share: float = 0.5) -> bool:
            return random.random() < share

        forks_too = some(0.4)
        return cls(
            vbuckets=random.choice((1, 2, 4)),
            collections=some(),
            writers=some(0.6),
            durable=some(0.3),
            forks=forks_too,
            purges=not forks_too and some(0.4),
            expiries=some(0.4),
            late=some(0.4),
            windows=some(0.4),
            filters=some(),
            ends=some(),
            stream_ids=some(0.2),
            out_of_order=some(0.3),
            rich_values=some(),
            expels=some(),
            questions=some(0.6),
        )


class RandomSession:
    """Some clients of one cluster."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self._random = Random(seed)
        self.happens = Happens.chosen(self._random)
        self._recorder: Recorder | None = None
        self._cluster = ProducerCluster(
            ClusterSettings(
                vbuckets=self.happens.vbuckets,
                seed=self._random.randrange(2**32),
                rules="server",
                prepare_extra_bytes=2,
                clock=lambda: _BEGAN + (self._recorder.seconds if self._recorder else 0.0),
            )
        )
        recorder = self._recorder = Recorder(self._cluster)
        self._r = recorder
        self._steps = steps
        self._writers: list[RecordedClient] = []
        self._dropped_names = 0

    def record(self) -> list[TranscriptLine]:
        """Let it happen and return the transcript's lines."""
        for _ in range(self._random.randrange(12)):
            self._write()
        if self._some(0.5):
            self._expel()
        if self.happens.purges:  # what was purged before anybody looked leaves a gap only
            self._look()
        actions = self._actions()
        for _ in range(self._steps):
            weights = [weight for weight, _ in actions]
            self._random.choices(actions, weights)[0][1]()
            self._pass_time()
        self._r.seconds += 1.0
        for client in list(self._r.clients):
            self._r.read(client)
            if self._some(0.7):
                self._r.seconds += self._random.choice((0.001, 0.5))
                self._r.close(client)
        return self._r.lines

    def _actions(self) -> list[tuple[int, Callable[[], None]]]:
        happens = self.happens
        return [
            (10, self._open),
            (16, self._write_many),
            (14 * happens.writers, self._request_write),
            (3 * happens.writers, self._open_writer),
            (8, self._ask_for_stream),
            (3, self._close_stream),
            (10 * happens.windows, self._acknowledge),
            (12 * happens.late, self._read_late),
            (5 * happens.questions, self._question),
            (3 * happens.collections, self._change_manifest),
            (3 * happens.forks, self._fork),
            (3 * happens.purges, self._purge),
            (5 * happens.expels, self._expel),
            (4, self._leave),
            (2, self._stay_silent),
        ]

    def _some(self, share: float) -> bool:
        return self._random.random() < share

    def _pass_time(self) -> None:
        self._r.seconds += self._random.choice((0.0005, 0.001, 0.01, 0.4, 1.0))

    def _mark(self, text: str) -> None:
        self._r.note({"mark": text})

    # --- connections

    def _features(self) -> tuple[int, ...]:
        features = [HelloFeature.XATTR, HelloFeature.XERROR, HelloFeature.SELECT_BUCKET]
        for feature, share in (
            (HelloFeature.JSON, 0.8),
            (HelloFeature.SNAPPY, 0.4),
            (HelloFeature.COLLECTIONS, 0.6),
            (HelloFeature.MUTATION_SEQNO, 0.5),
        ):
            if self._some(share):
                features.append(feature)
        return tuple(features)

    def _log_in(self, *, late: bool, more: tuple[int, ...] = ()) -> RecordedClient:
        client = self._r.connect()
        mechanism = self._random.choice(("PLAIN", "PLAIN", "SCRAM-SHA512", "SCRAM-SHA1"))
        self._r.log_in(client, mechanism, (*self._features(), *more))
        client.reads_late = late
        return client

    def _open_writer(self) -> None:
        durable = (HelloFeature.ALT_REQUEST, HelloFeature.SYNC_REPLICATION)
        more = durable if self.happens.durable else ()
        self._writers.append(self._log_in(late=False, more=more))

    def _open(self) -> None:
        if len(self._r.clients) > 6:
            return
        late = self.happens.late and self._some(0.5)
        client = self._log_in(late=False)
        flags = OpenFlag.PRODUCER
        for flag, share in (
            (OpenFlag.INCLUDE_XATTRS, 0.3),
            (OpenFlag.INCLUDE_DELETE_TIMES, 0.3),
            (OpenFlag.NO_VALUE, 0.1),
        ):
            if self._some(share):
                flags |= flag
        name = client.name if self._some(0.95) else "c2"
        self._r.ask(client, m.DcpOpen(name.encode(), int(flags)), Opcode.DCP_OPEN)
        controls = [("enable_noop", "true"), ("set_noop_interval", "20")]
        if self.happens.windows and self._some(0.5):
            controls.append(("connection_buffer_size", self._random.choice(("300", "2000"))))
        for name, share in (
            ("send_stream_end_on_client_close_stream", 0.4),
            ("enable_expiry_opcode", 0.4),
            ("supports_cursor_dropping_vulcan", 0.3),
            ("force_value_compression", 0.1),
            ("enable_sync_writes", 0.3 * self.happens.durable),
            ("enable_stream_id", 0.5 * self.happens.stream_ids),
            ("enable_out_of_order_snapshots", 0.4 * self.happens.out_of_order),
        ):
            if self._some(share):
                controls.append((name, "true"))
        for name, value in controls:
            self._r.ask(client, m.DcpControl(name.encode(), value.encode()), Opcode.DCP_CONTROL)
        client.reads_late = late
        if late:
            client.answers_noops = True
        for vbucket in range(self.happens.vbuckets):
            if self._some(0.7):
                self._stream(client, vbucket)

    def _some_client(self) -> RecordedClient | None:
        found = [each for each in self._r.clients if each not in self._writers]
        return self._random.choice(found) if found else None

    def _leave(self) -> None:
        """A client goes and another one goes on where it stood."""
        gone = self._some_client()
        if gone is None:
            return
        self._r.read(gone)
        self._pass_time()
        self._r.close(gone)
        if self._some(0.6):
            self._look(gone)

    def _look(self, gone: RecordedClient | None = None) -> None:
        """Open a plain connection that streams everything, or goes on where another one stood."""
        client = self._log_in(late=False)
        client.positions = gone.positions if gone is not None else {}
        flags = int(OpenFlag.PRODUCER)
        self._r.ask(client, m.DcpOpen(client.name.encode(), flags), Opcode.DCP_OPEN)
        self._r.ask(client, m.DcpControl(b"enable_noop", b"true"), Opcode.DCP_CONTROL)
        for vbucket in range(self.happens.vbuckets):
            if gone is None:
                self._r.stream(client, vbucket)
            elif vbucket in gone.positions:
                self._stream(client, vbucket)

    # --- streams

    def _ask_for_stream(self) -> None:
        client = self._some_client()
        if client is not None:
            self._stream(client, self._random.randrange(self.happens.vbuckets))

    def _stream(self, client: RecordedClient, vbucket: int) -> None:
        flags = 0
        for flag, share in (
            (StreamFlag.DISK_ONLY, 0.08),
            (StreamFlag.TO_LATEST, 0.1 * self.happens.ends),
            (StreamFlag.ACTIVE_VB_ONLY, 0.1),
            (StreamFlag.STRICT_VBUUID, 0.1),
            (StreamFlag.IGNORE_PURGED_TOMBSTONES, 0.05),
        ):
            if self._some(share):
                flags |= flag
        end = END_OF_TIME
        if self.happens.ends and self._some(0.3):
            end = self._random.randrange(1, 40)
        filter_: dict[str, object] = {}
        if HelloFeature.COLLECTIONS in client.features and self.happens.filters and self._some(0.5):
            known = sorted(self._cluster.manifest.collections)
            chosen = self._random.sample(known, min(len(known), self._random.choice((1, 2))))
            filter_ = {"collections": [f"{each:x}" for each in chosen]}
        sid = None
        if self.happens.stream_ids and HelloFeature.COLLECTIONS in client.features:
            sid = self._random.choice((None, 1, 2))
            filter_ = filter_ | ({"sid": sid} if sid else {})
        value = json.dumps(filter_).encode() if filter_ else b""
        self._r.stream(client, vbucket, flags=flags, end=end, value=value, stream_id=sid)

    def _close_stream(self) -> None:
        client = self._some_client()
        if client is None or not client.streams:
            return
        opaque = self._random.choice(sorted(client.streams))
        vbucket, _ = client.streams.pop(opaque)
        self._r.ask(client, m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=vbucket)

    def _acknowledge(self) -> None:
        client = self._some_client()
        if client is not None and client.unacked_bytes > 0:
            part = self._random.choice((1.0, 1.0, 0.5))
            self._r.acknowledge(client, max(1, int(client.unacked_bytes * part)))

    def _read_late(self) -> None:
        late = [client for client in self._r.clients if client.reads_late and client.unread]
        if late:
            client = self._random.choice(late)
            self._r.read(client, self._random.choice((1, 3, None)))

    def _stay_silent(self) -> None:
        self._r.seconds += self._random.choice((1.0, 3.0, 21.0))
        self._r.spread()

    # --- the server's documents

    def _value(self) -> tuple[bytes, int]:
        size = self._random.choice((1, 20, 200))
        value = json.dumps({"n": self._random.randrange(99), "p": "x" * size}).encode()
        datatype = 0
        if self._some(0.1):
            value = self._random.randbytes(12)
        if self.happens.rich_values and self._some(0.3):
            value = xattr.join_xattrs([(b"_sync", b'{"rev":1}'), (b"meta", b"1")], value)
            datatype |= Datatype.XATTR
        if self.happens.rich_values and self._some(0.3):
            value = snappy.deflate(value)
            datatype |= Datatype.SNAPPY
        return value, datatype

    def _collection(self) -> int | None:
        known = sorted(self._cluster.manifest.collections)
        return self._random.choice(known) if known else None

    def _write(self) -> None:
        collection, key = self._collection(), self._random.choice(_KEYS)
        if collection is None:
            return
        try:
            if self._some(0.25):
                self._cluster.delete(key, collection=collection)
            elif self.happens.expiries and self._some(0.2):
                self._cluster.set(
                    key, b"{}", expiry=self._random.choice((1, 5)), collection=collection
                )
            else:
                value, datatype = self._value()
                flags = self._random.choice((0, 0x2000006))
                self._cluster.set(key, value, datatype=datatype, flags=flags, collection=collection)
        except DocumentError:
            pass  # nothing is there to delete

    def _write_many(self) -> None:
        self._mark("some writes")
        with self._cluster.batch():
            if self.happens.expiries and self._some(0.3):
                self._cluster.expire_due()
            for _ in range(self._random.choice((1, 1, 3, 6))):
                self._write()
        self._r.spread()

    def _request_write(self) -> None:
        writers = [each for each in self._writers if not each.is_gone]
        if not writers:
            return
        writer = self._random.choice(writers)
        frames = 1 if self._some(0.8) else 3
        for _ in range(frames):
            self._one_request(writer)

    def _one_request(self, writer: RecordedClient) -> None:
        collection = self._collection()
        key = self._random.choice(_KEYS)
        vbucket = self._cluster.vbucket_of(key)
        if HelloFeature.COLLECTIONS in writer.features:
            key = encode_leb128(collection or 0) + key
        expiry = self._random.choice((0, 0, 1, 5)) if self.happens.expiries else 0
        value, datatype = self._value()
        if datatype & Datatype.SNAPPY and HelloFeature.SNAPPY not in writer.features:
            value, datatype = b'{"plain":1}', 0
        opcode = self._random.choice(
            (
                Opcode.SET,
                Opcode.SET,
                Opcode.ADD,
                Opcode.REPLACE,
                Opcode.DELETE,
                Opcode.TOUCH,
                Opcode.GET,
            )
        )
        body: m.Body = m.Store(key, value, 3, expiry)
        framing = b""
        if opcode in (Opcode.DELETE, Opcode.GET):
            body, datatype = m.KeyOnly(key), 0
        elif opcode == Opcode.TOUCH:
            body, datatype = m.Touch(key, expiry), 0
        if (
            self.happens.durable
            and self._some(0.4)
            and opcode not in (Opcode.GET, Opcode.TOUCH)
            and HelloFeature.ALT_REQUEST in writer.features
        ):
            framing = MAJORITY
        self._r.ask(
            writer, body, opcode, vbucket=vbucket, datatype=datatype, framing_extras=framing
        )

    def _change_manifest(self) -> None:
        held = self._cluster.manifest
        extra = sorted(each for each in held.collections if each)
        self._mark("the manifest changes")
        choice = self._random.random()
        if choice < 0.15:
            self._dropped_names += 1
            self._cluster.create_scope(f"s{self._dropped_names}")
        elif choice < 0.6 or not extra:
            self._dropped_names += 1
            scopes = sorted(scope.name for scope in held.scopes.values())
            scope = self._random.choice(scopes)
            self._cluster.create_collection(scope, f"n{self._dropped_names}")
        else:
            chosen = held.collections[self._random.choice(extra)]
            scope = held.scopes[chosen.scope_id].name
            if choice < 0.85:
                self._cluster.drop_collection(scope, chosen.name)
            else:
                self._cluster.flush_collection(scope, chosen.name)
        self._r.spread()

    def _fork(self) -> None:
        self._mark("something happens to the vbuckets")
        if self._some(0.5):
            failover.crash(self._cluster.bucket, 0, self._random.randrange(4))
        else:
            vbucket = self._random.randrange(self.happens.vbuckets)
            other = self._random.choice((VbucketState.REPLICA, VbucketState.DEAD))
            self._cluster.set_vbucket_state(vbucket, other)
            self._r.spread()
            if self._some(0.3):
                self._ask_for_stream()
            self._cluster.set_vbucket_state(vbucket, VbucketState.ACTIVE)
        self._r.spread()

    def _purge(self) -> None:
        self._mark("compaction")
        vbucket = self._random.randrange(self.happens.vbuckets)
        self._cluster.purge_tombstones(vbucket)
        self._r.spread()

    def _expel(self) -> None:
        for vbucket in self._cluster.bucket.vbuckets:
            vbucket.data.checkpoints.expel()

    # --- questions

    def _question(self) -> None:
        client = self._random.choice(self._r.clients) if self._r.clients else None
        if client is None:
            return
        vbucket = self._random.randrange(self.happens.vbuckets)
        log = self._cluster.failover_log(vbucket)
        collection = self._collection()
        questions: list[tuple[m.Body, int]] = [
            (m.GetAllVbSeqnos(), Opcode.GET_ALL_VB_SEQNOS),
            (m.GetAllVbSeqnos(1), Opcode.GET_ALL_VB_SEQNOS),
            (m.GetAllVbSeqnos(1, collection or 0), Opcode.GET_ALL_VB_SEQNOS),
            (m.Empty(), Opcode.GET_FAILOVER_LOG),
            (m.Empty(), Opcode.DCP_GET_FAILOVER_LOG),
            (m.ObserveSeqno(log.entries[0].vb_uuid), Opcode.OBSERVE_SEQNO),
            (m.ObserveSeqno(log.entries[-1].vb_uuid), Opcode.OBSERVE_SEQNO),
            (m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST),
            (m.GetId(b"_default.n1"), Opcode.GET_COLLECTION_ID),
            (m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG),
            (m.Stat(self._random.choice(_GROUPS)), Opcode.STAT),
            (m.Empty(), Opcode.NOOP),
            (m.Empty(), Opcode.VERSION),
            (m.Empty(), Opcode.SASL_LIST_MECHS),
        ]
        body, opcode = self._random.choice(questions)
        self._r.ask(client, body, opcode, vbucket=vbucket)


def main() -> None:  # pragma: no cover
    """Write the transcripts of some seeds to files."""
    import sys
    from pathlib import Path

    folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, first + count):
        lines = RandomSession(seed).record()
        (folder / f"{seed}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
