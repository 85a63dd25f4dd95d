"""Holds an apply back until enough disks have its rows (``policy.persist_to``).

A node that crashes loses what its disk lacks, or what it had not sent to the replica that replaces
it. Then the cluster orders a rollback, which takes published rows back. Rows on the disks of the
active node and of some replicas are lost only with all of those disks. Couchbase's clients call
this rollback mitigation.
"""

import logging
from collections.abc import Collection, Mapping
from threading import Event
from time import monotonic
from typing import Final

from dcp.client.cluster_map import ClusterMap
from dcp.client.probe import persisted_seqnos
from dcp.errors import (
    ConfigError,
    IncompleteRunError,
    RemoteProtocolError,
    SecretError,
    SourceError,
)
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import RollbackPolicy, Settings
from dcp.lake.receive.source_access import Remembered, SourceAccess, ask_cluster
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.printable import number_ranges

_LOGGER = logging.getLogger(__name__)
NO_DISKS: Final = (
    "policy.persist_to has no effect: the bucket is ephemeral, which no node has on disk; all is "
    "published at once"
)
_SHORT_SECONDS: Final = 2.0
"""The wait if the caller will ask again soon."""
_FIRST_WAIT_SECONDS: Final = 0.1
_LONGEST_WAIT_SECONDS: Final = 2.0


def disks_of(persist_to: int, cluster: ClusterMap) -> int:
    """Return how many nodes' disks must have the rows: ``persist_to``, or 0 for an ephemeral
    bucket.

    Raises:
        ConfigError: the bucket has fewer copies.
    """
    if cluster.is_ephemeral:
        return 0
    if (copies := 1 + cluster.replica_count) < persist_to:
        raise ConfigError(
            f"policy.persist_to: found {persist_to}, expected at most {copies}: the bucket has "
            f"{copies - 1} replica{'s' * (copies != 2)}, so that rows are never on more disks"
        )
    return persist_to


class PersistenceGate:
    """Asks the nodes before each apply for the seqnos on their disks."""

    def __init__(
        self, lake: LakeTables, settings: Settings, access: SourceAccess, remembered: Remembered
    ) -> None:
        self._lake = lake
        self._access = access
        self._remembered = remembered
        self._nodes = settings.policy.persist_to
        self._patience_seconds = settings.round.node_deadline_seconds
        self._leaves_rollbacks = settings.policy.rollback is RollbackPolicy.FAIL
        self._blocked: frozenset[int] = frozenset()
        self._persisted: dict[int, LakeVbucketState] = {}
        """The newest state of each vbucket that is on enough disks."""
        self._missing: frozenset[int] = frozenset()
        self._why = ""
        self._stop = Event()

    def heed(self, stop: Event) -> None:
        self._stop = stop

    def leave_out(self, blocked: Collection[int]) -> None:
        """Do not ask for vbuckets whose rollback cannot be followed: their rows do not change."""
        self._blocked = frozenset(blocked)

    def lets_pass(self, from_round: int, to_round: int, *, waits: bool) -> bool:
        """Return whether enough disks have the rows up to ``to_round``.

        All tables hold ``from_round``; published rows are not checked again. ``waits``: wait for
        ``round.node_deadline_seconds``, otherwise for two seconds. A node's refusal raises nothing
        here: the look at the cluster reports it.
        """
        if not self._nodes:
            return True
        if not self._persisted and from_round:
            self._persisted = {**states_at(self._lake, from_round)}
        states = states_at(self._lake, to_round)
        until = monotonic() + (self._patience_seconds if waits else _SHORT_SECONDS)
        wait_seconds = _FIRST_WAIT_SECONDS
        while missing := self._not_persisted(states):
            self._missing = frozenset(missing)
            is_lost = any(states[vbucket].order for vbucket in missing)  # and taken back soon
            if is_lost or monotonic() >= until or self._stop.wait(wait_seconds):
                _LOGGER.warning("%s", self._told())
                return False
            self._lake.store.cached_reads.read_anew()
            wait_seconds = min(2 * wait_seconds, _LONGEST_WAIT_SECONDS)
        self._missing = frozenset()
        return True

    def refuse_withheld(self) -> None:
        """Raise if an apply is withheld, so that no run reports success.

        Raises:
            IncompleteRunError: names the vbuckets that too few disks have.
        """
        if self._missing:
            raise IncompleteRunError(
                f"{self._told()}; what was read is committed, the next run goes on from there"
            )

    def _told(self) -> str:
        replicas = self._nodes - 1
        disks = "the active node's disk"
        if replicas:
            disks = f"the disks of the active node and {replicas} replica{'s'[: replicas - 1]}"
        why = f" ({self._why})" if self._why else ""
        return (
            f"nothing was published: vbuckets {number_ranges(self._missing)} are not on {disks} "
            f"yet (policy.persist_to){why}"
        )

    def _not_persisted(self, states: Mapping[int, LakeVbucketState]) -> list[int]:
        branches = {
            vbucket: state.failover_log.uuid_at(state.complete_seqno)
            for vbucket, state in states.items()
            if state.failover_log is not None and self._must_ask(state)
        }
        if not branches:
            return []
        connection = self._access.consumer.connection
        try:
            credentials = self._access.source.credentials()
            cluster, _ = ask_cluster(self._access, self._remembered)
            self._nodes = disks_of(self._nodes, cluster)
            if not self._nodes:
                _LOGGER.warning(NO_DISKS)
                return []
            found = persisted_seqnos(cluster, branches, connection, credentials)
            after, _ = ask_cluster(self._access, self._remembered)
        except (SourceError, RemoteProtocolError, SecretError) as error:
            self._why = str(error)
            return sorted(branches)
        self._why = ""
        for vbucket, seqnos in found.items():
            owner = cluster.owner(vbucket)
            # The old node of a vbucket that moved meanwhile spoke for a copy.
            is_active = owner == after.owner(vbucket)
            complete = states[vbucket].complete_seqno
            having = {node for node, seqno in seqnos.items() if seqno >= complete}
            if is_active and owner in having and len(having) >= self._nodes:
                self._persisted[vbucket] = states[vbucket]
        return sorted(vbucket for vbucket in branches if self._must_ask(states[vbucket]))

    def _must_ask(self, state: LakeVbucketState) -> bool:
        is_left = state.vbucket in self._blocked or (state.order and self._leaves_rollbacks)
        if state.complete_seqno == 0 or is_left:
            return False
        known = self._persisted.get(state.vbucket)
        reached = (state.epoch, state.complete_seqno)
        return known is None or (known.epoch, known.complete_seqno) != reached
