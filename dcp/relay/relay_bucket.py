"""The bucket of a relay: its vbuckets are copies that another cluster fills; it takes no writes.

On disk they are replicas, so that no restart begins a branch: the only branches are the cluster's.
Clients see them as active, since the relay has just one copy of each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dcp.errors import ConfigError
from dcp.relay.relay_figures import RelayFigures
from dcp.server.bucket.bucket import Bucket
from dcp.server.bucket.copy_table import Copies, NodeVbucket
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.listeners import Listeners
from dcp.server.model.manifest import Manifest
from dcp.server.model.resume_rules import ResumeRequest, range_is_valid, rollback_seqno
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.server.vbucket.vbucket import Vbucket
from dcp.types import U64_MAX, FailoverLog
from dcp.wire.vocabulary import EndReason, StreamFlag, VbucketState

NODE: Final = 0
"""The relay's only node."""


class _OwnCopies(Copies):
    """Copies that are the bucket's own vbuckets: they do not come and go with a map."""

    def all_vbuckets(self) -> list[Vbucket]:
        """Return none beside the bucket's own."""
        return []

    def follow(self, _: ServedClusterMap) -> list[NodeVbucket]:
        """Keep all."""
        return []


class UpstreamOrigin:
    """The ``BucketOrigin`` of a relay: its vbuckets are copies that upstream streams fill."""

    opened_state = VbucketState.REPLICA

    def __init__(self) -> None:
        self.on_sent: Listeners[[int]] = Listeners()
        """Told of a vbucket that a client was sent something of, to decide how far it may go."""

    def begin(self, vbucket: Vbucket) -> None:
        """Present it to clients as active; documents expire on the cluster only."""
        vbucket.show_as(VbucketState.ACTIVE)
        vbucket.documents.leave_expired()

    def own_copies(
        self,
        vbuckets: Sequence[Vbucket],
        known_manifest: Callable[[], Manifest],
        quota_bytes: int,
    ) -> Copies:
        """Have each vbucket as the only copy."""
        copies = _OwnCopies(
            lambda _, vbucket: vbuckets[vbucket],
            lambda _, __: None,
            known_manifest,
            quota_bytes,
        )
        for vbucket in range(len(vbuckets)):
            copies.add(NODE, vbucket)
        return copies

    def sent(self, vbucket: int) -> None:
        """Notify the vbucket's flow control that items were sent."""
        self.on_sent(vbucket)


class RelayBucket(Bucket):
    """A bucket whose copies are filled by streams from elsewhere."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Begin a bucket, or open the one of the settings' data folder.

        Raises:
            ConfigError: the folder is another bucket's, or of another number of vbuckets.
            SourceError: another process uses it.
        """
        self.origin = UpstreamOrigin()
        self.tell_figures: Callable[[], RelayFigures] = RelayFigures
        super().__init__(settings, self.origin)
        found = self.map.bucket_uuid
        if settings.bucket_uuid and found != settings.bucket_uuid:
            self.close()
            raise ConfigError(
                f"data folder {settings.data_folder}: bucket uuid: found {found!r}, expected "
                f"{settings.bucket_uuid!r}: it was filled from another bucket of that name"
            )

    def process_figures(self) -> RelayFigures:
        return self.tell_figures()

    @property
    def all_copies(self) -> Mapping[int, ReplicaCopy]:
        """The copies that the cluster fills, by vbucket."""
        return self.copies.of_node(NODE)

    def copy(self, vbucket: int) -> ReplicaCopy:
        """Return the copy of a vbucket that the cluster fills."""
        found = self.copies.at(NODE, vbucket)
        if found is None:
            raise AssertionError(f"vbucket {vbucket}: every vbucket is a copy here")
        return found

    def end_streams(self, vbucket: int, reason: EndReason = EndReason.STATE_CHANGED) -> None:
        """End the streams of a vbucket: what they go on with is another branch."""
        self.dcp_connections.end_streams(vbucket, NODE, reason=reason)

    def is_known(self, vbucket: int) -> bool:
        """Return whether the failover log of the vbucket is known."""
        return self.copy(vbucket).has_history

    def take_failover_log(self, vbucket: int, log: FailoverLog) -> None:
        """Take the failover log of a vbucket that has none yet."""
        if not self.is_known(vbucket):
            self.copy(vbucket).take_failover_log(log)

    def take_manifest(self, manifest: Manifest) -> None:
        """Have the manifest that the cluster has, unless it is older than what is known.

        Raises:
            OSError: the data folder cannot be written; it is not known then.
        """
        if manifest.uid >= self.manifest.uid and manifest != self.manifest:
            self._save(manifest)
            self.collections.take(manifest)

    def is_too_early(self, vbucket: int, request: ResumeRequest) -> bool:
        """Return whether a client must wait because the relay has not reached its position yet.

        A client may be ahead of a relay that was begun again. Only the branches decide whether it
        must go back, as if the relay had all that there is of the newest.
        """
        if not self.is_known(vbucket):
            return True
        facts = self.vbuckets[vbucket].facts()
        if request.flags & StreamFlag.FROM_LATEST or not range_is_valid(request, facts):
            return False
        at_the_end = replace(facts, high_seqno=U64_MAX)
        if rollback_seqno(request, at_the_end, self.settings.rules) is not None:
            return False
        if self.copy(vbucket).awaits_first_disk_snapshot or request.start > facts.high_seqno:
            return True
        is_between = request.start in (request.snap_start, request.snap_end)
        needed = request.start if is_between else request.snap_end
        return needed > max(facts.high_seqno, self.copy(vbucket).snapshot.end)
