"""Asks the driver of a lake to pause, to resume or to resync, by a row of the table ``control``."""

from typing import TYPE_CHECKING

from dcp.lake.config.settings import Settings
from dcp.lake.log.control import Action, ActionState, Control
from dcp.lake.tables.opening import opened_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ask(
    settings: Settings,
    action: str,
    vbuckets: str | None = None,
    spark: "SparkSession | None" = None,
) -> Action:
    """Ask the driver of a lake, which need not run now, for an action without options.

    Raises:
        LakeError: there is no lake.

    """
    wanted = Action.requested(action, vbuckets, {})
    with opened_lake(settings, spark) as lake, lake.look():
        Control(lake).write(wanted, ActionState.REQUESTED)
    return wanted
