"""Asks a lake's driver by a row of the table ``control``, and answers between its rounds.

``pause`` stops further rounds until ``resume``; received rounds are still applied. ``resync`` lets
vbuckets begin anew with the next round; a resync of all vbuckets repairs a damaged lake. The driver
answers each request by a row. Other modules carry out backfills and erasures
(`dcp.lake.run.driver_backfills`, `dcp.lake.run.driver_erasures`).
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from dcp.errors import ConfigError, FencedError, LakeError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import (
    Control,
    ControlRequest,
    RequestAction,
    RequestState,
    pause_of,
)
from dcp.lake.change_log.erase_request import Erasure
from dcp.lake.config.settings import Settings
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.run.repair import is_damaged, refuse_damage, repair
from dcp.lake.tables.lake_tables import LakeTables
from dcp.printable import number_ranges, numbers_of, printable
from dcp.suggestions import refusal_of_gone

_LOGGER: Final = logging.getLogger(__name__)

_LASTING: Final = (RequestAction.ERASE, RequestAction.RESYNC)
"""A driver begins these before a round, and answers them after it."""


def ask(
    settings: Settings, action: RequestAction, vbuckets: Collection[int] | None = None
) -> ControlRequest:
    """Write a request without options. The lake's driver need not run at this moment.

    Raises:
        ConfigError: the bucket lacks a vbucket.
        LakeError: there is no lake.
    """
    ranges = None if vbuckets is None else number_ranges(vbuckets)
    wanted = ControlRequest.new(action, ranges, {})
    with opened_lake(settings) as lake, lake.read_once():
        vbuckets_of(wanted.vbuckets, lake.identity.vbucket_count)
        Control(lake).write(wanted, RequestState.REQUESTED)
    return wanted


class Requests:
    """The requests that one driver or plan sees. ``only_in_log``: see `dcp.lake.run.repair`."""

    def __init__(
        self, lake: LakeTables, control: Control, writer_id: str, only_in_log: Sequence[str]
    ) -> None:
        self._lake = lake
        self._control = control
        self._writer_id = writer_id
        self._only_in_log = only_in_log
        self._begun: tuple[ControlRequest, ...] = ()

    def carry_out(self) -> ControlRequest | None:
        """Begin or answer the requests; return the pause that is in force, if any.

        Raises:
            FencedError: another driver committed a round during a repair; the request stays open.
        """
        for request in self._control.requests():
            if not request.is_open and request.is_to_be_cancelled:
                late = f"cancel: found the request {request.state}, expected an open one"
                self._control.write(
                    replace(request, action=RequestAction.CANCEL), RequestState.REFUSED, None, late
                )
            elif request.is_open and request.action != RequestAction.BACKFILL:
                self._carry_out(request)
        return pause_of(self._control.requests())

    def _carry_out(self, request: ControlRequest) -> None:
        if request.is_to_be_cancelled:
            return self._control.write(request, RequestState.CANCELLED)
        if request.state is RequestState.BEGUN and request.action in _LASTING:
            return self._refuse_wrong_begin(request)
        try:
            newest = latest_round(self._lake)
            _refuse_wrong(request)
            if request.action == RequestAction.RESYNC:
                self._prepare_resync(request)
        except FencedError:  # the other driver will do it
            raise
        except (ConfigError, LakeError) as error:
            return self._refuse(request, error)
        state = RequestState.BEGUN if request.action in _LASTING else RequestState.DONE
        return self._control.write(request, state, newest)

    def _refuse_wrong_begin(self, request: ControlRequest) -> None:
        """Refuse a begun resync that no driver can have begun. `DriverErasures` does that for its
        requests.
        """
        if request.action != RequestAction.RESYNC:
            return
        newest = latest_round(self._lake)
        try:
            _refuse_wrong(request)
            self._vbuckets_of(request)
            if request.round > newest:
                raise ConfigError(f"round: found {request.round}, expected at most {newest}")
        except ConfigError as error:
            self._refuse(request, error)

    def _refuse(self, request: ControlRequest, error: Exception) -> None:
        named = printable(f"request {request.id}: {request.action}")
        refused = "refused" if self._control.writes else "will be refused"
        _LOGGER.warning("%s %s: %s", named, refused, error)
        self._control.write(request, RequestState.REFUSED, detail=str(error))

    def _prepare_resync(self, request: ControlRequest) -> None:
        """Repair a damaged lake if all vbuckets begin anew. A plan, which writes nothing, does not.

        Raises:
            ConfigError: the bucket lacks a vbucket.
            LakeError: the lake is damaged, and the request names only some vbuckets; or the repair
                fails.
            FencedError: another driver committed a round.
        """
        lake = self._lake
        if len(self._vbuckets_of(request)) < lake.identity.vbucket_count:
            refuse_damage(lake)
        elif self._control.writes and is_damaged(lake):
            repair(lake, self._writer_id, only_in_log=self._only_in_log)

    def resyncs(self) -> dict[int, int]:
        """Return the vbuckets of begun requests, each with the round after which it begins anew."""
        requests = self._control.requests()
        self._begun = tuple(
            each
            for each in requests
            if each.action == RequestAction.RESYNC and each.state is RequestState.BEGUN
        )
        begun: dict[int, int] = {}  # of several requests for a vbucket the one that was begun last
        for request in self._begun:
            for vbucket in self._vbuckets_of(request):
                begun[vbucket] = max(request.round, begun.get(vbucket, 0))
        return begun

    def end_resyncs(self, lake_state: LakeState) -> None:
        """Answer the requests whose vbuckets have begun anew, as ``lake_state`` shows."""
        for request in self._begun:
            if self._vbuckets_of(request).isdisjoint(lake_state.resyncs):
                self._control.write(request, RequestState.DONE, lake_state.latest_round)

    def _vbuckets_of(self, request: ControlRequest) -> frozenset[int]:
        return vbuckets_of(request.vbuckets, self._lake.identity.vbucket_count)


def _refuse_wrong(request: ControlRequest) -> None:
    if request.action == RequestAction.CANCEL:
        raise ConfigError(f"cancel: found no request of id {request.id!r} before it")
    if request.action not in tuple(RequestAction):
        expected = ", ".join(RequestAction)
        wrong = f"action: found {request.action!r}, expected one of {expected}"
        raise ConfigError(refusal_of_gone(request.action) or wrong)
    if request.action == RequestAction.ERASE:
        Erasure.of(request.options)
    elif request.options is not None:
        raise ConfigError(
            f"options: found {request.options!r:.80}, expected null: {request.action} has none"
        )


def vbuckets_of(ranges: str | None, vbucket_count: int) -> frozenset[int]:
    """Return the vbuckets that a request names; all of them for None.

    Raises:
        ConfigError: the bucket lacks one of them.
    """
    every = frozenset(range(vbucket_count))
    if ranges is None:
        return every
    expected = f"expected some of 0-{vbucket_count - 1}, as in 0-63, 70, or null for all"
    try:
        found = numbers_of(ranges)
    except ValueError:
        raise ConfigError(f"vbuckets: found {ranges!r}, {expected}") from None
    if unknown := found - every:
        raise ConfigError(f"vbuckets: found {number_ranges(unknown)}, {expected}")
    return found
