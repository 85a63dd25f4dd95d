"""Asks a lake's driver by a row of the table ``control``, and answers between its rounds.

``pause`` stops further rounds until ``resume``; received rounds are still applied. ``resync`` lets
vbuckets begin anew with the next round; a resync of all vbuckets repairs a damaged lake. The driver
answers each request by a row. Other modules carry out backfills and erasures
(`dcp.lake.run.driver_backfills`, `dcp.lake.run.driver_erasures`).
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dcp.errors import ConfigError, FencedError, LakeError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import (
    BACKFILL,
    CANCEL,
    ERASE,
    PAUSE,
    RESUME,
    RESYNC,
    Action,
    ActionState,
    Control,
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

ACTIONS: Final = (BACKFILL, ERASE, PAUSE, RESUME, RESYNC)
_LASTING: Final = (ERASE, RESYNC)
"""A driver begins these before a round, and answers them after it."""


def ask(settings: Settings, action: str, vbuckets: Collection[int] | None = None) -> Action:
    """Write a request without options. The lake's driver need not run at this moment.

    Raises:
        ConfigError: the bucket lacks a vbucket.
        LakeError: there is no lake.
    """
    ranges = None if vbuckets is None else number_ranges(vbuckets)
    wanted = Action.requested(action, ranges, {})
    with opened_lake(settings) as lake, lake.read_once():
        vbuckets_of(wanted.vbuckets, lake.identity.vbucket_count)
        Control(lake).write(wanted, ActionState.REQUESTED)
    return wanted


class Requests:
    """The requests that one driver sees. ``only_in_log``: see `dcp.lake.run.repair`."""

    def __init__(
        self, lake: LakeTables, control: Control, writer_id: str, only_in_log: Sequence[str]
    ) -> None:
        self._lake = lake
        self._control = control
        self._writer_id = writer_id
        self._only_in_log = only_in_log
        self._begun: tuple[Action, ...] = ()

    def carry_out(self) -> Action | None:
        """Begin or answer the requests; return the pause that is in force, if any.

        Raises:
            FencedError: another driver committed a round during a repair; the request stays open.
        """
        for action in self._control.actions():
            if not action.is_open and action.is_to_be_cancelled:
                late = f"cancel: found the request {action.state}, expected an open one"
                self._control.write(replace(action, action=CANCEL), ActionState.REFUSED, None, late)
            elif action.is_open and action.action != BACKFILL:
                self._carry_out(action)
        return pause_of(self._control.actions())

    def _carry_out(self, action: Action) -> None:
        if action.is_to_be_cancelled:
            return self._control.write(action, ActionState.CANCELLED)
        if action.state is ActionState.BEGUN:
            return None
        try:
            newest = latest_round(self._lake)
            _refuse_wrong(action)
            if action.action == RESYNC:
                self._prepare_resync(action)
        except FencedError:  # the other driver will do it
            raise
        except (ConfigError, LakeError) as error:
            request = printable(f"request {action.id}: {action.action}")
            _LOGGER.warning("%s refused: %s", request, error)
            return self._control.write(action, ActionState.REFUSED, detail=str(error))
        state = ActionState.BEGUN if action.action in _LASTING else ActionState.DONE
        return self._control.write(action, state, newest)

    def _prepare_resync(self, action: Action) -> None:
        """Repair a damaged lake if all vbuckets begin anew.

        Raises:
            ConfigError: the bucket lacks a vbucket.
            LakeError: the lake is damaged, and the request names only some vbuckets; or the repair
                fails.
            FencedError: another driver committed a round.
        """
        lake, vbucket_count = self._lake, self._lake.identity.vbucket_count
        if len(vbuckets_of(action.vbuckets, vbucket_count)) < vbucket_count:
            refuse_damage(lake)
        elif is_damaged(lake):
            repair(lake, self._writer_id, only_in_log=self._only_in_log)

    def resyncs(self) -> dict[int, int]:
        """Return the vbuckets of begun requests, each with the round after which it begins anew."""
        actions = self._control.actions()
        self._begun = tuple(each for each in actions if each.state is ActionState.BEGUN)
        return resyncs_of(self._begun, 0, self._lake.identity.vbucket_count)

    def end_resyncs(self, lake_state: LakeState) -> None:
        """Answer the requests whose vbuckets have begun anew, as ``lake_state`` shows."""
        for action in self._begun:
            if action.action == RESYNC:
                vbuckets = vbuckets_of(action.vbuckets, self._lake.identity.vbucket_count)
                if vbuckets.isdisjoint(lake_state.resyncs):
                    self._control.write(action, ActionState.DONE, lake_state.latest_round)


def _refuse_wrong(action: Action) -> None:
    if action.action == CANCEL:
        raise ConfigError(f"cancel: found no request of id {action.id!r} before it")
    if action.action not in ACTIONS:
        expected = ", ".join((*ACTIONS, CANCEL))
        wrong = f"action: found {action.action!r}, expected one of {expected}"
        raise ConfigError(refusal_of_gone(action.action) or wrong)
    if action.action == ERASE:
        Erasure.of(action.options)
    elif action.options is not None:
        raise ConfigError(
            f"options: found {action.options!r:.80}, expected null: {action.action} has none"
        )


def resyncs_of(actions: Iterable[Action], newest: int, vbucket_count: int) -> dict[int, int]:
    """Return the vbuckets of open requests, each with the round after which it begins anew.

    That round was the newest one when a driver began the request. For a request that no driver has
    begun it is ``newest``. Requests that a driver will refuse do not count.
    """
    begun: dict[int, int] = {}  # of several requests for a vbucket the one that was begun last
    for action in actions:
        if action.action == RESYNC and action.is_open and not action.is_to_be_cancelled:
            number = action.round if action.state is ActionState.BEGUN else newest
            with suppress(ConfigError):
                _refuse_wrong(action)
                for vbucket in vbuckets_of(action.vbuckets, vbucket_count):
                    begun[vbucket] = max(number, begun.get(vbucket, number))
    return begun


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
