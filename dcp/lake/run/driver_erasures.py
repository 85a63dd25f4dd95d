"""Carries out the erasures that the table ``control`` asks for, between two rounds.

A driver begins a request before a round. If the request keeps values out, tasks do so from that
round on. The erasure follows when the tables hold all received rows:

1. The driver commits a round without rows. Another driver's round that was planned before the
   request loses to it, so no task brings a value in the meantime.
2. Each replica of the collection gets a version that holds that round. It lacks the documents, or
   their values.
3. The lake notes that the log lacks document rows. Then the documents leave the log, the audit and
   the quality table.
4. The files of older versions are deleted.

Each step can be repeated. If a driver dies, the request stays open, and the next driver begins with
the first step.
"""

import logging
from collections.abc import Callable
from typing import Final

from dcp.errors import ConfigError, IncompleteRunError, LakeError
from dcp.lake.apply.applier import Applier
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import append_states, latest_round
from dcp.lake.change_log.control import Control, ControlRequest, RequestState
from dcp.lake.change_log.erase_request import Erasure, erasure_to_do, kept_out
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.change_log.stop_points import reached
from dcp.lake.maintain.document_removal import (
    erase_rows,
    existing_replicas,
    find_documents,
    purge_tables,
    unknown_collection,
)
from dcp.lake.rounds.observer import Observer
from dcp.lake.spark.failures import spark_errors
from dcp.lake.tables.lake_tables import LakeTables, record_cleaned_round

_LOGGER: Final = logging.getLogger(__name__)


class DriverErasures:
    def __init__(
        self,
        lake: LakeTables,
        control: Control,
        applier: Applier,
        writer_id: str,
        observer: Observer,
    ) -> None:
        self._lake = lake
        self._control = control
        self._applier = applier
        self._writer_id = writer_id
        self._observer = observer
        self._before_this_round = ""
        """The id of the request that was begun before the round under way."""
        self._before_last_round = ""
        """The id of the request that was begun before the last round."""
        self._tried: tuple[str, int] | None = None
        """The id of the request that waits, and the newest round after its last try."""

    def kept_out(self) -> dict[str, frozenset[str]]:
        """See `DocumentFilter.kept_out`. The caller must know the newest round before it asks."""
        requests = self._control.requests()
        request = erasure_to_do(requests)
        self._before_this_round = "" if request is None else request.id
        return kept_out(requests)

    def note_round(self) -> None:
        """Note that the lake has all that the cluster had at the last call of `kept_out`."""
        self._before_last_round = self._before_this_round

    def refuse_waiting(self) -> None:
        """Raise if a request is still open, so that no bounded run reports success.

        Raises:
            IncompleteRunError: names the request and the reason of its wait.
        """
        request = erasure_to_do(self._control.requests())
        if request is not None:
            raise IncompleteRunError(
                f"request {request.id}: the erasure waits: {request.detail or 'not tried yet'}; "
                "all else is done, and the next run tries again"
            )

    def is_due(self) -> bool:
        """Return whether a request was begun before the last round, and was not tried since."""
        request = erasure_to_do(self._control.requests())
        if request is None:
            return False
        newest = latest_round(self._lake)
        is_seen = request.id == self._before_last_round or request.round < newest
        return is_seen and self._tried != (request.id, newest)

    def carry_out(self, apply_received: Callable[[], object]) -> bool:
        """Carry out the oldest begun request; return whether it has ended.

        The request waits if a table does not hold all received rows even after ``apply_received``.
        It waits, too, if a row of a document waits for the end of its snapshot.

        Raises:
            FencedError: another driver writes to the lake; the request stays open.
        """
        request = erasure_to_do(self._control.requests())
        if request is None or not self.is_due():
            return False
        newest = latest_round(self._lake)
        try:
            erasure = Erasure.of(request.options)
        except ConfigError as error:  # somebody else wrote that it is begun
            self._control.write(request, RequestState.REFUSED, newest, str(error))
            return True
        apply_received()
        reason = self._erase(request, erasure, newest)
        if reason:
            _LOGGER.warning("request %s: the erasure waits: %s", request.id, reason)
            self._tried = request.id, latest_round(self._lake)
            if request.detail != reason:
                self._control.write(request, RequestState.BEGUN, newest, reason)
            return False
        return True

    def _erase(self, request: ControlRequest, erasure: Erasure, newest: int) -> str:
        """Erase or refuse the documents; or return the reason to wait."""
        lake, applier = self._lake, self._applier
        if unknown := unknown_collection(lake, erasure):
            self._control.write(request, RequestState.REFUSED, newest, unknown)
            return ""
        replicas = existing_replicas(lake, erasure)
        if not newest:
            return "no round is committed"
        for replica in replicas:
            if not applier.has_published(replica, newest):
                return f"table {replica.name} does not hold round {newest} whole"
        states = states_at(lake, newest)
        found = find_documents(lake, erasure, newest, states)
        if not erasure.keeps_out:
            if found.incomplete:
                return "a change of a document waits for the end of its snapshot"
            if found.at_source:
                self._control.write(request, RequestState.REFUSED, newest, found.still_at_source())
                return ""
        number = newest + 1
        append_states(lake, states.values(), number, self._writer_id)
        reached("erase.round")
        changed: dict[str, int] = {}
        for replica in replicas:
            made = applier.erase(replica, number, erasure)
            changed[replica.name] = made.deleted + made.updated
            reached("erase.applied")
        record_cleaned_round(lake, replicas, newest)
        changed |= erase_rows(lake, erasure, newest)
        reached("erase.log")
        try:
            with spark_errors("the files of older versions cannot be deleted"):
                files = purge_tables(lake, erasure)
        except LakeError as error:
            return str(error)
        reached("erase.purged")
        for replica in replicas:
            if replica_status(lake, replica).round < number:
                return f"table {replica.name} was taken back meanwhile"
        told = ", ".join(f"{count:,} in {table}" for table, count in changed.items())
        detail = f"rows, by this attempt: {told}; files of older versions deleted: {files:,}"
        self._control.write(request, RequestState.DONE, number, detail)
        self._observer.erased(request.id, detail)
        return ""
