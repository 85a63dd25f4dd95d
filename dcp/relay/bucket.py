"""The bucket of a relay: another cluster fills its vbuckets, and it takes no writes.

On disk the vbuckets are replicas, so no restart begins a branch: all branches come from the
cluster. Clients see them as active, because the relay is their only node.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from dcp.errors import ConfigError
from dcp.relay_figures import RelayFigures
from dcp.server.bucket.assembly import Bucket
from dcp.server.model.counters import Counters
from dcp.server.model.listeners import Listeners
from dcp.server.model.manifest import Manifest
from dcp.server.model.resume_rules import range_is_valid, rollback_seqno
from dcp.server.model.server_settings import ServerSettings
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import DcpClient
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import U64_MAX, FailoverLog
from dcp.wire.messages import StreamRequest
from dcp.wire.vocabulary import EndReason, StreamFlag, VbucketState

NODE: Final = 0
"""Index of the relay's only node."""


class UpstreamOrigin:
    """The ``BucketOrigin`` of a relay."""

    send_hook = None
    opened_state = VbucketState.REPLICA
    replica_node = NODE

    def __init__(self) -> None:
        self.on_stream_moved: Listeners[[int]] = Listeners()
        """Called with a vbucket after a client was sent some of its items."""

    def begin(self, vbucket: Vbucket) -> None:
        vbucket.show_as(VbucketState.ACTIVE)

    def stream_moved(self, vbucket: int) -> None:
        self.on_stream_moved(vbucket)

    def acknowledged(self, vbucket: int) -> None:
        """Do nothing: a relay has no prepares."""

    def hand_over(self, _: ActiveStream, __: DcpClient) -> bool:
        """Return False: the cluster decides who is active."""
        return False


class RelayBucket(Bucket):
    """The bucket of a relay."""

    def __init__(self, settings: ServerSettings) -> None:
        """Create the bucket, or open it from the data folder of ``settings``.

        Raises ConfigError if the folder belongs to another bucket or number of vbuckets, and
        SourceError if another process uses it.
        """
        self.origin = UpstreamOrigin()
        self.tell_figures: Callable[[], RelayFigures] = RelayFigures
        super().__init__(settings, self.origin, Counters())
        found = self.map.bucket_uuid
        if settings.bucket_uuid and found != settings.bucket_uuid:
            self.close()
            raise ConfigError(
                f"{settings.named('data_folder')} {settings.data_folder}: bucket uuid: found "
                f"{found!r}, expected {settings.bucket_uuid!r}: it was filled from another bucket "
                "of that name"
            )

    def process_figures(self, _: int = NODE) -> RelayFigures:
        return self.tell_figures()

    @property
    def all_replicas(self) -> Mapping[int, Replica]:
        return self.replicas.of_node(NODE)

    def replica(self, vbucket: int) -> Replica:
        found = self.replicas.at(NODE, vbucket)
        if found is None:
            raise AssertionError(f"vbucket {vbucket}: every vbucket is a replica here")
        return found

    def end_streams(self, vbucket: int, reason: EndReason = EndReason.STATE_CHANGED) -> None:
        self.dcp_connections.end_streams(vbucket, NODE, reason=reason)

    def is_known(self, vbucket: int) -> bool:
        """Return True if the relay has the vbucket's failover log."""
        return self.replica(vbucket).has_failover_log

    def take_failover_log(self, vbucket: int, failover_log: FailoverLog) -> None:
        if not self.is_known(vbucket):
            self.replica(vbucket).take_failover_log(failover_log)

    def take_manifest(self, manifest: Manifest) -> None:
        """Save and use the cluster's manifest, unless it is older than the present one.

        Raises OSError if the data folder cannot be written; the old manifest then stays.
        """
        if manifest.uid >= self.manifest.uid and manifest != self.manifest:
            self._save(manifest)
            self.collections.take(manifest)

    def is_too_early(self, vbucket: int, request: StreamRequest) -> bool:
        """Return True if the client must wait, because the relay does not have its position yet.

        A client can be ahead of a relay that was started with an empty folder.
        """
        if not self.is_known(vbucket):
            return True
        facts = self.vbuckets[vbucket].facts()
        # FROM_LATEST needs no position, and an invalid range gets its error at once.
        if request.flags & StreamFlag.FROM_LATEST or not range_is_valid(request, facts):
            return False
        # Only the branches decide about a rollback: the relay will get the newest branch's missing
        # items.
        at_the_end = replace(facts, high_seqno=U64_MAX)
        if rollback_seqno(request, at_the_end, self.settings.rules) is not None:
            return False
        if self.replica(vbucket).awaits_first_disk_snapshot or request.start > facts.high_seqno:
            return True
        # Between snapshots the client needs only its start seqno; inside one, the snapshot's end.
        is_between = request.start in (request.snap_start, request.snap_end)
        needed = request.start if is_between else request.snap_end
        return needed > max(facts.high_seqno, self.replica(vbucket).snapshot.end)
