"""Holds applies back until what they publish is on enough disks (``policy.persist_to``).

A node that crashes loses what it had not written to its disk, or not handed to a replica that is
promoted in its place: then it orders a rollback, which takes published rows back. What is on the
disks of the active node and of n replicas is lost only with all of them. Couchbase's clients call
this rollback mitigation.
"""

import logging
from collections.abc import Mapping
from threading import Event
from time import monotonic
from typing import Final

from dcp.client.persistence import persisted_seqnos
from dcp.errors import (
    AuthenticationError,
    BucketError,
    ConfigError,
    IncompleteRunError,
    RemoteProtocolError,
    SourceError,
)
from dcp.lake.config.settings import Settings
from dcp.lake.log.rollback_plan import RollbackPolicy
from dcp.lake.log.round_records import positions_at
from dcp.lake.receive.receive import SourceAccess
from dcp.lake.receive.source_access import query_cluster
from dcp.lake.tables.tables import LakeTables
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.printable import number_ranges

_LOG = logging.getLogger(__name__)
_NO_DISK: Final = ": the nodes have nothing on disk; for an ephemeral bucket set persist_to = 0"
_FIRST_WAIT_SECONDS: Final = 0.1
_LONGEST_WAIT_SECONDS: Final = 2.0


class PersistenceGate:
    """Asks the nodes, for as long as ``round.node_deadline_seconds``, before each apply."""

    def __init__(self, lake: LakeTables, settings: Settings, access: SourceAccess) -> None:
        self._lake = lake
        self._access = access
        self._nodes = settings.policy.persist_to
        self._patience_seconds = settings.round.node_deadline_seconds
        self._follows_rollbacks = settings.policy.rollback != RollbackPolicy.FAIL
        self._persisted: dict[int, VbucketProgress] = {}
        """The newest state of each vbucket that is on enough disks."""
        self._missing: frozenset[int] = frozenset()
        self._cure = ""
        self._stop = Event()

    def heed(self, stop: Event) -> None:
        """Wait for no disk any more when ``stop`` is set."""
        self._stop = stop

    def lets_pass(self, from_round: int, to_round: int) -> bool:
        """Return whether the rows up to ``to_round`` are on enough disks; wait until they are.

        All tables hold ``from_round``: what was published is not asked for again. False where that
        takes too long, or the run is to stop: a later call asks again.

        Raises:
            ConfigError: the bucket has fewer copies than that.
            AuthenticationError, BucketError: user, password or bucket are refused.

        """
        if not self._nodes:
            return True
        if not self._persisted and from_round:
            self._persisted = {**positions_at(self._lake, from_round)}
        states = positions_at(self._lake, to_round)
        until, wait_seconds = monotonic() + self._patience_seconds, _FIRST_WAIT_SECONDS
        while missing := self._not_persisted(states):
            self._missing = frozenset(missing)
            if monotonic() >= until or self._stop.wait(wait_seconds):
                _LOG.warning("%s", self._told())
                return False
            wait_seconds = min(2 * wait_seconds, _LONGEST_WAIT_SECONDS)
        self._missing = frozenset()
        return True

    def refuse_held(self) -> None:
        """Refuse to call a run done while an apply is held back.

        Raises:
            IncompleteRunError: names the vbuckets that are not on enough disks.

        """
        if self._missing:
            raise IncompleteRunError(
                f"{self._told()}; what was read is committed, the next run goes on from there"
            )

    def _told(self) -> str:
        disks = "the disk of a node" if self._nodes == 1 else f"the disks of {self._nodes} nodes"
        return (
            f"nothing was published: vbuckets {number_ranges(self._missing)} are not on {disks} "
            f"(policy.persist_to), after {self._patience_seconds:g} s{self._cure}"
        )

    def _not_persisted(self, states: Mapping[int, VbucketProgress]) -> list[int]:
        """Ask for what is not known to be on enough disks; return the vbuckets that are not."""
        branches = {
            vbucket: state.failover_log.uuid_at(state.complete_seqno)
            for vbucket, state in states.items()
            if state.failover_log is not None and self._must_ask(state)
        }
        if not branches:
            return []
        try:
            cluster = query_cluster(self._access).map
        except (AuthenticationError, BucketError):
            raise
        except (SourceError, RemoteProtocolError):
            return sorted(branches)
        if (copies := 1 + cluster.replica_count) < self._nodes:
            raise ConfigError(
                f"policy.persist_to: found {self._nodes}, expected at most {copies}: the bucket "
                f"has {copies - 1} replicas"
            )
        connection, source = self._access.consumer.connection, self._access.source
        found = persisted_seqnos(cluster, branches, connection, source.credentials())
        told = [seqno for seqnos in found.values() for seqno in seqnos]
        self._cure = _NO_DISK if told and not any(told) else ""
        for vbucket, seqnos in found.items():
            state = states[vbucket]
            if sum(seqno >= state.complete_seqno for seqno in seqnos) >= self._nodes:
                self._persisted[vbucket] = state
        return sorted(vbucket for vbucket in branches if self._must_ask(states[vbucket]))

    def _must_ask(self, state: VbucketProgress) -> bool:
        if state.complete_seqno == 0 or (state.order and not self._follows_rollbacks):
            return False
        known = self._persisted.get(state.vbucket)
        place = (state.epoch, state.complete_seqno)
        return known is None or (known.epoch, known.complete_seqno) != place
