"""Asks for a backfill (``dcplake backfill``) and waits for its end.

The request is a row of the table ``control``. If another process drives the lake, that process
carries it out between its rounds. Otherwise this process drives the lake itself. A killed command
can be called again: it goes on with the open backfill.
"""

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from dcp.client.probe import ProbedCluster
from dcp.errors import ConfigError, IncompleteRunError, StoppedError
from dcp.lake.adapters.opening import opened_lake, opened_store
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import Settings
from dcp.lake.rounds.backfill_plan import BackfillReport
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import BackfillNodes
from dcp.lake.run.driver_backfills import backfill_of, progress_of, requested_backfill
from dcp.lake.run.replicate import driving, stopping
from dcp.lake.spark.jvm_options import MANY_CHANGES
from dcp.lake.store.lock import LakeLockedError
from dcp.lake.tables.lake_tables import LakeTables

_LOOK_SECONDS: Final = 1.0


def is_large_backfill(vbuckets: Collection[int] | None, high_seqnos: Mapping[int, int]) -> bool:
    """Return whether it reads so many changes that Java's best compiler pays (`jvm_options`)."""
    chosen = high_seqnos if vbuckets is None else vbuckets
    return sum(high_seqnos.get(vbucket, 0) for vbucket in chosen) >= MANY_CHANGES


def backfill(
    settings: Settings,
    vbuckets: Collection[int] | None,
    nodes: str,
    megabytes_per_second: float | None = None,
    *,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> ControlRequest:
    """Rebuild vbuckets, or go on with the open backfill, and return its outcome.

    Args:
        settings: all sections.
        vbuckets: the vbuckets to rebuild; None means all.
        nodes: one of `NODE_CHOICES`.
        megabytes_per_second: the most that all tasks read together; None means no limit.
        observer: it sees the progress.
        stop: ends the command; the backfill stays open.

    Raises:
        ConfigError: another backfill is open; or the driver refused the request.
        IncompleteRunError: some vbuckets could not be rebuilt; the message names them.
        StoppedError: the caller asked to stop, and the backfill stays open; or somebody cancelled
            it.
    """
    told = observer or Observer()
    wanted = requested_backfill(vbuckets, nodes, megabytes_per_second)
    is_long = partial(is_large_backfill, vbuckets)

    def check(cluster: ProbedCluster) -> None:
        backfill_of(wanted, cluster.map.vbucket_count)

    def drive() -> ControlRequest:
        with driving(settings, "dcplake backfill", told, stopped, is_long, check=check) as (
            driver,
            cluster,
        ):
            control = Control(driver.lake)
            request = _own(driver.lake, control, wanted)
            driver.once(cluster, stopped, is_enough=lambda: not control.request(request.id).is_open)
            return control.request(request.id)

    def wait_for_driver() -> ControlRequest:
        with opened_lake(settings) as lake:
            control = Control(lake)
            request = _own(lake, control, wanted)
            while request.is_open:
                if request.state is RequestState.BEGUN:
                    told.backfill(_seen(lake, request))
                if stopped.wait(_LOOK_SECONDS):
                    break
                request = control.request(request.id)
                with suppress(LakeLockedError), opened_store(settings, writer="dcplake backfill"):
                    break  # nobody drives it
            return request

    with stopping(stop, settings.round) as stopped:
        while not stopped.is_set():
            try:
                request = drive()
            except LakeLockedError:
                request = wait_for_driver()
            if not request.is_open:
                return _result(request)
    raise StoppedError("the backfill was asked to stop; it stays open, and any run goes on with it")


def cancel_backfill(settings: Settings) -> ControlRequest:
    """Ask the lake's driver to end the open backfill.

    The driver reads vbuckets that have begun to their end, from the active nodes. The others stay
    unchanged.

    Raises:
        ConfigError: no backfill is open.
    """
    with opened_lake(settings) as lake:
        control = Control(lake)
        request = _open_backfill(control)
        if request is None:
            raise ConfigError(
                f"{lake.location}: found no backfill that is open, expected one to cancel"
            )
        control.write(
            ControlRequest(id=request.id, action=RequestAction.CANCEL), RequestState.REQUESTED
        )
        return request


def _own(lake: LakeTables, control: Control, wanted: ControlRequest) -> ControlRequest:
    found = _open_backfill(control)
    if found is None:
        control.write(wanted, RequestState.REQUESTED)
        return wanted
    if _asked_for(lake, found) != _asked_for(lake, wanted):
        raise ConfigError(
            f"found the backfill {found.id} open (vbuckets {found.vbuckets or 'all'}, "
            f"{found.options}), expected none or the same: wait until it has ended, or end it with "
            "dcplake backfill --cancel"
        )
    return found


def _asked_for(
    lake: LakeTables, request: ControlRequest
) -> tuple[frozenset[int], BackfillNodes] | None:
    """Return the vbuckets and the nodes of a request, in one form for comparison."""
    try:
        backfill = backfill_of(request, lake.identity.vbucket_count)
    except ConfigError:
        return None  # its driver will refuse it
    return backfill.vbuckets, backfill.nodes


def _open_backfill(control: Control) -> ControlRequest | None:
    """Return the oldest open backfill. A cancelled one does not count: it ends before the next
    round.
    """
    for each in control.requests():
        if each.action == RequestAction.BACKFILL and each.is_open and not each.is_to_be_cancelled:
            return each
    return None


def _seen(lake: LakeTables, request: ControlRequest) -> BackfillReport:
    newest = latest_round(lake)
    states = states_at(lake, newest)
    backfill = backfill_of(request, lake.identity.vbucket_count)
    done = progress_of(lake, backfill, states, newest).done
    return BackfillReport(request.id, len(backfill.vbuckets), len(done))


def _result(request: ControlRequest) -> ControlRequest:
    if request.state is RequestState.REFUSED:
        raise ConfigError(f"backfill {request.id}: {request.detail}")
    if request.state is RequestState.INCOMPLETE:
        raise IncompleteRunError(f"backfill {request.id}: {request.detail}")
    if request.state is RequestState.CANCELLED:
        raise StoppedError(f"backfill {request.id}: somebody cancelled it; {request.detail}")
    return request
