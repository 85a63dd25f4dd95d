"""The bucket of a cluster: clients write to it, and other nodes have replicas.

Changes of state are in ``bucket_states.py``, ``promotion.py`` and ``failover.py``.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import cast

from dcp.producer.branch_record import BranchRecord
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.counters import ProducerCounters
from dcp.producer.faults import Faults
from dcp.producer.figures import ProducerFigures
from dcp.producer.manifest_changes import ManifestChange, changed
from dcp.producer.memory import producer_figures
from dcp.producer.replica_progress import ReplicaProgress
from dcp.producer.writes.document_writer import DocumentWriter
from dcp.producer.writes.sync_write_board import SyncWriteBoard
from dcp.server.bucket.assembly import Bucket
from dcp.server.commands.session import Session
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.versions import Version
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import DcpClient
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import Status, VbucketState

_LOGGER = logging.getLogger(__name__)


class ClientOrigin:
    """The ``BucketOrigin`` of a bucket that clients write to."""

    opened_state = None
    replica_node = None

    def __init__(self, bucket: "ProducerBucket") -> None:
        self._bucket = bucket

    @property
    def send_hook(self) -> Faults:
        return self._bucket.faults

    def begin(self, vbucket: Vbucket) -> None:
        vbucket.data.persistence.lag_by(self._bucket.settings.unpersisted_seqnos)

    def stream_moved(self, vbucket: int) -> None:
        """Do nothing."""

    def acknowledged(self, vbucket: int) -> None:
        self._bucket.sync_writes.acknowledged(vbucket)

    def hand_over(self, stream: ActiveStream, client: DcpClient) -> bool:
        """Return False if the vbucket is not active on the node, or if a node asks without a
        rebalance; else end its other streams, too.
        """
        bucket, (node, _) = self._bucket, client.key
        vbucket = bucket.table.active(stream.vbucket, node)
        if vbucket is None or not stream.is_of(vbucket.data):
            return False
        # The rebalance may have been cancelled: the vbucket stays.
        if client.is_internal and not bucket.table.is_moving(stream.vbucket):
            return False
        vbucket.hand_over(is_move=client.is_internal)
        bucket.follow_change(vbucket, node, spared=stream)
        return True


class ProducerBucket(Bucket):
    """The bucket of a cluster; callers hold its lock."""

    settings: ClusterSettings
    counters: ProducerCounters

    def __init__(self, settings: ClusterSettings) -> None:
        """Create a bucket, or open the one in the settings' data folder."""
        self.faults = Faults()
        counters = ProducerCounters(record_seqnos=settings.record_seqnos)
        super().__init__(settings, ClientOrigin(self), counters)
        self.replica_progress = ReplicaProgress(self.map, self.table, self.dcp_connections)
        self.writers = [DocumentWriter(vbucket.documents) for vbucket in self.vbuckets]
        self.sync_writes = SyncWriteBoard(
            self.table, self.writers, self.replica_progress, self.writes, settings.clock
        )
        self.records: dict[int, BranchRecord] = {}
        """The records of vbuckets that are recorded, by number."""
        for vbucket in self.vbuckets:
            # A record cannot know the items that were read from disk.
            if vbucket.data.high_seqno == vbucket.data.base_seqno:
                self._record(vbucket)
            self.follow_manifest(vbucket)

    def process_figures(self, node: int) -> ProducerFigures:
        return producer_figures(self, node, records_branches=self.settings.record_branches)

    # --- what is saved at once

    @contextmanager
    def promoting_replicas(self, heirs: Mapping[int, int]) -> Iterator[None]:
        """Save promoted replicas together with the map that the caller changes inside.

        ``heirs`` gives the promoted node by vbucket. If the save fails, or the block raises,
        neither the map nor the replicas change.

        Raises:
            OSError: the data folder cannot be written.
        """
        replicas = ((node, v, self.replicas.at(node, v)) for v, node in heirs.items())
        prepared = [
            (node, v) for node, v, each in replicas if each is not None and each.is_prepared
        ]
        storage = nullcontext() if self._storage is None else self._storage.installing(prepared)
        with storage, self.changing_map():
            yield

    # --- what clients and administrators do

    def write(self, key: bytes, command: Callable[[DocumentWriter], Version]) -> Version:
        """Run a KV command on the vbucket that holds ``key``, and wake its streams.

        Raises:
            RefusedError: the command is refused; NOT_MY_VBUCKET if the vbucket is not active.
        """
        vbucket = self.table.of_key(key)
        if vbucket.state is not VbucketState.ACTIVE:
            raise RefusedError(
                Status.NOT_MY_VBUCKET, f"{key!r}: vbucket {vbucket.id} is {vbucket.state.name}"
            )
        return self.write_to(vbucket, command)

    def write_to(self, vbucket: Vbucket, command: Callable[[DocumentWriter], Version]) -> Version:
        """Run a KV command on a vbucket, and wake its streams.

        Raises:
            RefusedError: the command is refused; ETMPFAIL if checkpoints take their whole quota.
        """
        self.writes.require_memory()
        return self.read_from(vbucket, command)

    def read_from(self, vbucket: Vbucket, command: Callable[[DocumentWriter], Version]) -> Version:
        """Run a KV command that reads; only an expiry that it finds is a write."""
        # Even a refused command can have written: an expiry that it came across.
        before = vbucket.data.high_seqno
        try:
            return command(self.writers[vbucket.id])
        finally:
            if vbucket.data.high_seqno != before:
                self.writes.wrote(vbucket.id)

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Change scopes and collections under one new uid; active vbuckets emit system events.

        Raises:
            RefusedError: a change is invalid; none is made.
            OSError: the data folder cannot be written; no change is made.
        """
        self.collections.change(changed(self.manifest, changes), self.vbuckets)
        for vbucket in self.vbuckets:
            self.follow_manifest(vbucket)

    def follow_manifest(self, vbucket: Vbucket) -> None:
        """Let an active vbucket emit the system events that it lacks for the bucket's manifest.

        Raises:
            OSError: the data folder cannot be written; the next call emits the events.
        """
        if self.collections.follow(vbucket):
            self.writes.wrote(vbucket.id)

    def expire_due(self, now: float) -> int:
        """Run the expiry pager over all active vbuckets; return the number of expired documents.

        Raises:
            Exception: the first failure of a vbucket; the pager still visits all others.
        """
        total = 0
        failures: list[Exception] = []
        for vbucket in self.vbuckets:
            if vbucket.state is not VbucketState.ACTIVE:
                continue
            # Documents that expired ahead of a failure are written and must reach the streams.
            before = vbucket.data.high_seqno
            try:
                try:
                    total += self.writers[vbucket.id].expire_due(now)
                finally:
                    if vbucket.data.high_seqno != before:
                        self.writes.wrote(vbucket.id)
            except Exception as error:  # one broken vbucket must not stop the pager for the others
                failures.append(error)
        if failures:
            raise failures[0]
        return total

    def follow_change(
        self, vbucket: Vbucket, node: int | None = None, *, spared: ActiveStream | None = None
    ) -> None:
        """Apply the effects of a vbucket's change of state or branch.

        The vbucket is the one at ``node`` (None: the owner's). In this order: its sync writes start
        over, its streams end except ``spared``, it emits the system events that it lacks.
        """
        if self.vbuckets[vbucket.id] is vbucket:
            self._follow_history(vbucket)
            self.sync_writes.recover(vbucket.id)
        # Streams must end before the first write to the new branch: no stream may cross a fork.
        self.dcp_connections.end_streams(vbucket.id, node, spared=spared)
        try:
            self.follow_manifest(vbucket)
        except OSError as error:
            # The change of state stands; the next ``follow_manifest`` emits the events.
            _LOGGER.warning(
                "vbucket %d: system events cannot be emitted yet: %s", vbucket.id, error
            )

    def _follow_history(self, vbucket: Vbucket) -> None:
        record = self.records.get(vbucket.id)
        if record is not None:
            record.follow(vbucket.failover_log, vbucket.data.high_seqno)
        if self.writers[vbucket.id].documents is not vbucket.documents:
            self.writers[vbucket.id] = DocumentWriter(vbucket.documents)
            if record is not None:
                vbucket.data.on_append.add(record.append)

    def begin_anew(self, vbucket: Vbucket, versions: Iterable[Version]) -> None:
        """Follow a vbucket that was replaced by one with these versions; the record begins anew."""
        self.writers[vbucket.id] = DocumentWriter(vbucket.documents)
        self._record(vbucket, versions)
        self.sync_writes.forget(vbucket.id)

    def _record(self, vbucket: Vbucket, versions: Iterable[Version] = ()) -> None:
        """Begin a vbucket's record with its ``versions``, if the settings ask for records."""
        if self.settings.record_branches:
            self.records[vbucket.id] = record = BranchRecord(vbucket.id, vbucket.failover_log)
            for version in versions:
                record.append(version)
            vbucket.data.on_append.add(record.append)


def bucket_of(session: Session) -> ProducerBucket:
    """Return the bucket of a producer's session."""
    return cast("ProducerBucket", session.bucket)
