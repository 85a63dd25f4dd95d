"""The bucket that all nodes serve: vbuckets, their owners, and who must hear of a change.

All access is under ``lock``: connections run in the server's loop, tests write from their own
threads. A write marks its vbucket as changed and calls ``on_change`` once until the changes are
collected, so that writes close together reach a stream as one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from random import Random
from threading import Condition, RLock
from typing import TYPE_CHECKING

from dcp.producer.bucket.auth import UserStore, node_credentials
from dcp.producer.bucket.bucket_manifest import BucketManifest
from dcp.producer.bucket.bucket_origin import BucketOrigin, WrittenHere
from dcp.producer.bucket.bucket_storage import BucketStorage
from dcp.producer.bucket.compactor import Compactor, compact_in_passing
from dcp.producer.bucket.copies import Copies
from dcp.producer.bucket.flusher import Flusher
from dcp.producer.bucket.held_vbuckets import HeldVbuckets
from dcp.producer.bucket.large_frames import LargeFrames
from dcp.producer.bucket.persistence_waits import PersistenceWaits
from dcp.producer.bucket.replicas import Replicas, replicas_of
from dcp.producer.bucket.sync_write_board import SyncWriteBoard
from dcp.producer.bucket.taken_names import TakenNames
from dcp.producer.bucket.unsent_bytes import UnsentBytes
from dcp.producer.bucket.vbucket_maker import VbucketMaker
from dcp.producer.checkpoints.checkpoint_account import CheckpointAccount
from dcp.producer.model.cluster_map import ServedClusterMap
from dcp.producer.model.counters import Counters
from dcp.producer.model.faults import Faults
from dcp.producer.model.held_keys import HeldKeys
from dcp.producer.model.manifest import FIRST, Manifest, Step
from dcp.producer.model.settings import ClusterSettings
from dcp.producer.streams.stream_quota import StreamQuotas
from dcp.producer.vbucket.documents import DocumentError, DocumentStore
from dcp.producer.vbucket.resident_values import ResidentValues
from dcp.producer.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import Status, VbucketState

if TYPE_CHECKING:
    from dcp.producer.bucket.administrator import Administrator
    from dcp.producer.bucket.dcp_connection import DcpConnection
    from dcp.producer.model.manifest_changes import ManifestChange
    from dcp.producer.model.versions import Version


class Bucket:
    """All state that the nodes of a cluster share."""

    def __init__(self, settings: ClusterSettings, origin: BucketOrigin | None = None) -> None:
        """Begin a bucket, or open the one of a data folder.

        ``origin`` is given where others than clients fill it.
        """
        self.origin: BucketOrigin = origin or WrittenHere()
        self._random = random = Random(settings.seed)
        self._storage: BucketStorage | None = None
        if settings.data_folder is not None:
            self._storage = BucketStorage(settings, settings.data_folder, random)
            if settings.seed is not None and self._storage.starts:  # a branch's uuid is used once
                random.seed(f"{settings.seed} start {self._storage.starts}")
        self.settings, self.name = settings, settings.bucket
        self.lock = RLock()
        self.users = UserStore(settings.users)
        self.node_credentials = node_credentials()
        self.users.add_internal(self.node_credentials)
        self.map = ServedClusterMap(
            settings.bucket,
            self._uuid(),
            settings.nodes,
            settings.vbuckets,
            settings.replicas,
            settings.bucket_type,
        )
        self.counters = Counters(record_seqnos=settings.record_seqnos)
        quota_bytes = settings.memory_quota_bytes
        values = ResidentValues(quota_bytes, self.counters) if quota_bytes else None
        quota_bytes = settings.checkpoint_quota_bytes
        self.flusher = None if self._storage is None else self._new_flusher(quota_bytes)
        self.held = HeldVbuckets(
            VbucketMaker(settings, random, self._storage, values, self._wants_back),
            self.flusher,
            self.map,
            lambda: self.manifest,
            self.origin,
        )
        if self._storage is not None:
            self._storage.held = self.held.all
        self.vbuckets: list[Vbucket] = self.held.vbuckets
        self.copies: Copies = self.held.copies
        self.compactor = Compactor(
            self.held.all, self.lock, settings.stale_removal_seconds, settings.clock
        )
        self.collections = BucketManifest(
            FIRST if self._storage is None else self._storage.manifest,
            self._save,
            lambda: self.vbuckets,
            self.wrote,
        )
        self.save()
        self.replicas: Replicas = replicas_of(self)
        self.copies_moved = Condition(self.lock)
        """Notified when a copy received something, or may be about to."""
        self.dead_nodes: set[int] = set()
        self.moving: frozenset[int] = frozenset()
        """The vbuckets that a rebalance moves now."""
        self.administrator: Administrator | None = None
        self.faults = Faults()
        self.on_change: Callable[[], None] = lambda: None
        self.dcp_connections: dict[tuple[int, bytes], DcpConnection] = {}
        self.stream_quotas, self.held_keys = StreamQuotas(settings.max_streams), HeldKeys()
        # So many connections clients have, at all nodes.
        self._changed, self._written, self.clients = set[int](), set[int](), 0
        self.unsent, self._taken_names = UnsentBytes(), TakenNames()
        self.large_frames = LargeFrames(settings.large_frame_seconds)
        self._memory, self._open_batches = CheckpointAccount(quota_bytes), 0
        self.sync_writes = SyncWriteBoard(self)
        self.persistence_waits = PersistenceWaits(self)
        if self._storage is not None:
            for vbucket in self.vbuckets:
                self.collections.follow(vbucket)

    def _new_flusher(self, quota_bytes: int) -> Flusher:
        settings = self.settings
        flusher = Flusher(self.lock, settings.flush_seconds, quota_bytes, settings.clock)
        flusher.on_written = self.stored
        return flusher

    def _uuid(self) -> str:
        if self._storage is not None:
            return self._storage.bucket_uuid
        return self.settings.bucket_uuid or f"{self._random.getrandbits(128):032x}"

    def _wants_back(self, vbucket: int) -> bool:
        return self.replicas.wants_back(vbucket)

    @contextmanager
    def taking_place(self, heirs: Mapping[int, int]) -> Iterator[None]:
        """Let nodes' prepared copies be the vbuckets on disk, with the map as it is changed inside.

        Both are saved at the end at once; where that fails, or what is done inside, nothing is.

        Raises:
            OSError: the data folder cannot be written.
        """
        copies = ((node, v, self.copies.at(node, v)) for v, node in heirs.items())
        places = [(node, v) for node, v, copy in copies if copy is not None and copy.is_prepared]
        storage = nullcontext() if self._storage is None else self._storage.installing(places)
        with storage, self.changing_map():
            yield

    @contextmanager
    def changing_map(self) -> Iterator[None]:
        """Save the map as it is changed inside; where that fails, it is what it was.

        Raises:
            OSError: the data folder cannot be written.
        """
        with self.map.changing():
            yield
            self.save()

    @property
    def manifest(self) -> Manifest:
        """The scopes and collections that there are."""
        return self.collections.current

    @property
    def is_closed(self) -> bool:
        """Whether its data folder was given up."""
        return self._storage is not None and not self._storage.is_open

    def save(self) -> None:
        """Save the map and the manifest where there is a data folder; to be called on a change.

        Raises:
            OSError: the folder cannot be written.
        """
        self._save(self.manifest)

    def _save(self, manifest: Manifest, steps: Sequence[Step] = ()) -> None:
        if self._storage is not None and self._storage.is_open:
            self._storage.save(self.map, manifest, steps)

    def close(self) -> None:
        """Write what is pending and give up the data folder, if there is one; once is enough.

        Raises:
            OSError: the folder cannot be written; the next start is then as after a crash.
        """
        try:
            if self._storage is not None and self._storage.is_open:
                self._storage.close(self.vbuckets, self.copies.all_vbuckets())
        finally:
            if self.flusher is not None:
                self.flusher.close()

    def now(self) -> float:
        """Seconds since 1970 by the settings' clock."""
        return self.settings.clock()

    def changed(self, vbucket: int) -> None:
        """Note that ``vbucket`` has something new for its streams."""
        if not self._changed:
            self._changed.add(vbucket)
            self.on_change()
        else:
            self._changed.add(vbucket)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Let everything that is written inside be one disk snapshot of each vbucket."""
        self._open_batches += 1
        try:
            yield
        finally:
            self._open_batches -= 1
            if not self._open_batches:
                self._settle()

    @property
    def is_in_batch(self) -> bool:
        """Whether writes wait for others to be one disk snapshot with them."""
        return self._open_batches > 0

    def _settle(self) -> None:
        for vbucket in self._written:
            data = self.vbuckets[vbucket].data
            data.settle()
            self._memory.note(data.checkpoints)
            if self.flusher is not None:
                self.flusher.note(self.vbuckets[vbucket])
            else:
                compact_in_passing(self.vbuckets[vbucket], self.now())
        self._written.clear()
        if self.flusher is not None:
            self.flusher.keep_up()
        if self._memory.is_short:
            self._recover_memory()

    def stored(self, vbucket: Vbucket) -> None:
        """Note that the flusher wrote a vbucket or copy: what is on disk may be gone from memory.

        It calls this with the lock held, in any thread.
        """
        is_owned = self.vbuckets[vbucket.id] is vbucket
        memory = self._memory if is_owned else self.copies.memory_of(vbucket)
        if memory is not None:
            memory.note(vbucket.data.checkpoints)
            memory.relieve()

    def _recover_memory(self) -> None:
        """Free checkpoint memory; streams whose cursors that takes go back to the disk."""
        dropped = self._memory.recover(vbucket.data.checkpoints for vbucket in self.vbuckets)
        for vbucket, cursors in dropped.items():
            self._tell_dropped(self.vbuckets[vbucket], cursors)

    def _tell_dropped(self, vbucket: Vbucket, cursors: tuple[str, ...]) -> None:
        """Send the streams of a vbucket, or of a copy, back to the disk that lost their cursors."""
        if cursors:
            for connection in self.dcp_connections.values():
                connection.cursors_dropped(vbucket.data, cursors)

    @property
    def has_room(self) -> bool:
        """Whether copies may receive more: as long as clients may write."""
        return self.flusher is None or self.flusher.has_room

    def make_room(self) -> bool:
        """Write what waits for the disk if it is too much and can be; return ``has_room`` then."""
        return self.flusher is None or self.flusher.make_room()

    def received(self, node: int, vbucket: int) -> None:
        """Settle what a node's copy of ``vbucket`` received; its streams hear of it."""
        copy = self.copies.at(node, vbucket)
        if copy is None or not copy.settle():
            return
        if self.flusher is not None:
            self.flusher.note(copy.vbucket)
            self.flusher.keep_up()
        else:
            compact_in_passing(copy.vbucket, self.now())
        lost, copy.lost_cursors = copy.lost_cursors, ()
        self._tell_dropped(copy.vbucket, lost)
        for each, cursors in self.copies.note_memory(node, vbucket).items():
            if (short := self.copies.at(node, each)) is not None:
                self._tell_dropped(short.vbucket, cursors)
        self.changed(vbucket)
        self.copies_moved.notify_all()

    def wrote(self, vbucket: int) -> None:
        """Note that ``vbucket`` has new items: its disk and its streams must hear of them."""
        self._written.add(vbucket)
        self.changed(vbucket)
        if not self._open_batches:
            self._settle()

    def has_changed(self, vbucket: int) -> bool:
        """Whether a vbucket has something new of which its streams have not heard (asked by a
        relay's regulator).
        """
        return vbucket in self._changed

    def collect_changes(self) -> set[int]:
        """Return the vbuckets that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def write(self, key: bytes, command: Callable[[DocumentStore], Version]) -> Version:
        """Run a KV command on the store that holds ``key``; its streams hear of it.

        Raises:
            DocumentError: what the command refuses; NOT_MY_VBUCKET where the vbucket is not active.
        """
        vbucket = self.held.of_key(key)
        if vbucket.state is not VbucketState.ACTIVE:
            raise DocumentError(
                Status.NOT_MY_VBUCKET, f"{key!r}: vbucket {vbucket.id} is {vbucket.state.name}"
            )
        return self.write_to(vbucket, command)

    def write_to(self, vbucket: Vbucket, command: Callable[[DocumentStore], Version]) -> Version:
        """Run a KV command on this vbucket's store; its streams hear of what it changed.

        Raises:
            DocumentError: what the command refuses; ETMPFAIL while checkpoints take their whole
                quota.
        """
        self._require_memory()
        return self.read_from(vbucket, command)

    def _require_memory(self) -> None:
        if self._memory.is_full and self._memory.looks_again():
            self._recover_memory()
        if self._memory.is_full:
            raise DocumentError(
                Status.ETMPFAIL,
                f"write: checkpoints take {self._memory.memory_bytes} bytes, expected less than "
                f"{self.settings.checkpoint_quota_bytes}; copies or the disk still need them",
            )

    def relieve_memory(self) -> None:
        """Note that a stream to another node had something, or is over: memory may be free."""
        self._memory.relieve()

    def read_from(self, vbucket: Vbucket, command: Callable[[DocumentStore], Version]) -> Version:
        """Run a KV command that writes nothing but an expiry that it comes across."""
        before = vbucket.data.high_seqno
        try:
            return command(vbucket.documents)
        finally:
            if vbucket.data.high_seqno != before:
                self.wrote(vbucket.id)

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Change scopes and collections, all under one new uid; every active vbucket tells of it.

        Raises:
            ManifestError: a change that cannot be made; then none is.
            OSError: the data folder cannot be written; then none is.
        """
        self.collections.change(changes)

    def expire_due(self, now: float) -> int:
        """Run the expiry pager over all vbuckets; return how many documents expired.

        Raises:
            Exception: the first that kept a document from it; all others expired.
        """
        total = 0
        failures: list[Exception] = []
        for vbucket in self.vbuckets:
            if vbucket.state is not VbucketState.ACTIVE:
                continue
            before = vbucket.data.high_seqno
            try:
                try:
                    total += vbucket.documents.expire_due(now)
                finally:
                    if vbucket.data.high_seqno != before:
                        self.wrote(vbucket.id)
            except Exception as error:  # whatever it is: the other vbuckets have their turn
                failures.append(error)
        if failures:
            raise failures[0]
        return total

    def open_dcp(self, connection: DcpConnection) -> None:
        """Register a DCP connection; an older one of the same name at its node is closed."""
        self._taken_names.take(self.dcp_connections.get(connection.key), connection)
        self.dcp_connections[connection.key] = connection
        self.counters.dcp_connections_opened += 1
        self.counters.flows[connection.key] = connection.flow

    def close_dcp(self, connection: DcpConnection) -> None:
        """End a DCP connection's streams and forget it, unless a newer one took its name."""
        connection.drop_streams()
        self._taken_names.gone(connection)
        if self.dcp_connections.get(connection.key) is connection:
            del self.dcp_connections[connection.key]
            self.counters.flows.pop(connection.key, None)
