"""Asks a lake's driver by a row of the table ``control``, and answers between its rounds.

``pause`` lets no further round begin until ``resume``; what was received is applied. ``resync``
lets vbuckets be streamed again from their beginning. Each request is answered by a row. Backfills
are carried out elsewhere (`dcp.lake.run.backfills`).
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dcp.errors import ConfigError, FencedError, LakeError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import (
    BACKFILL,
    CANCEL,
    PAUSE,
    RESUME,
    RESYNC,
    Action,
    ActionState,
    Control,
    pause_of,
)
from dcp.lake.config.settings import Settings
from dcp.lake.run.resync import commit_resync
from dcp.lake.tables.lake_tables import LakeTables
from dcp.printable import number_ranges, numbers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)

ACTIONS: Final = (BACKFILL, PAUSE, RESUME, RESYNC)


def ask(
    settings: Settings,
    action: str,
    vbuckets: Collection[int] | None = None,
    spark: "SparkSession | None" = None,
) -> Action:
    """Ask a lake's driver, which need not run now, for an action without options.

    Raises:
        ConfigError: the bucket lacks a vbucket.
        LakeError: there is no lake.
    """
    wanted = Action.requested(action, None if vbuckets is None else number_ranges(vbuckets), {})
    with opened_lake(settings, spark) as lake, lake.read_once():
        vbuckets_of(wanted.vbuckets, lake.identity.vbucket_count)
        Control(lake).write(wanted, ActionState.REQUESTED)
    return wanted


class Requests:
    """The requests of one driver; ``only_in_log`` is that of `dcp.lake.run.resync`."""

    def __init__(
        self, lake: LakeTables, control: Control, writer_id: str, only_in_log: Sequence[str]
    ) -> None:
        self._lake = lake
        self._control = control
        self._writer_id = writer_id
        self._only_in_log = only_in_log

    def carry_out(self) -> Action | None:
        """Carry out the requests; return the pause that holds, if one does.

        Raises:
            FencedError: another driver committed a round during a resync; the request stays open.
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
        try:
            detail = self._do(action)
        except FencedError:  # the other driver will do it
            raise
        except (ConfigError, LakeError) as error:
            _LOG.warning("request %s: %s refused: %s", action.id, action.action, error)
            return self._control.write(action, ActionState.REFUSED, detail=str(error))
        newest = latest_round(self._lake)
        return self._control.write(action, ActionState.DONE, newest, detail)

    def _do(self, action: Action) -> str:
        if action.options is not None and action.action in (PAUSE, RESUME, RESYNC):
            raise ConfigError(
                f"options: found {action.options!r:.80}, expected null: {action.action} has none"
            )
        if action.action in (PAUSE, RESUME):
            return ""
        if action.action == CANCEL:
            raise ConfigError(f"cancel: found no request of id {action.id!r} before it")
        if action.action != RESYNC:
            expected = ", ".join((*ACTIONS, CANCEL))
            raise ConfigError(f"action: found {action.action!r}, expected one of {expected}")
        vbuckets = vbuckets_of(action.vbuckets, self._lake.identity.vbucket_count)
        number = commit_resync(
            self._lake,
            vbuckets,
            self._writer_id,
            request=action.id,
            only_in_log=self._only_in_log,
        )
        return f"round {number}"


def vbuckets_of(ranges: str | None, vbucket_count: int) -> frozenset[int]:
    """Return the vbuckets that a request names, or all.

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
