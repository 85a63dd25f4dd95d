"""Compares the table properties that hold the horizon with the setting, and corrects them."""

import logging
from collections.abc import Iterable

from dcp.lake.tables.horizon import FILE_RETENTION, RECORDED, Horizon, interval_seconds
from dcp.lake.tables.tables import LakeTables, ReplicaTable

_LOG = logging.getLogger(__name__)


def keep_retention(
    lake: LakeTables, replicas: Iterable[ReplicaTable], horizon: Horizon
) -> dict[str, str]:
    """Make Delta keep ``changes`` and the replicas for the horizon; return the changes by table.

    Somebody may have changed the properties, or the setting, since the last run. Logs changes, too.
    """
    told = {}
    for table, wrong in wrong_properties(lake, replicas, horizon).items():
        wanted = horizon.properties() | {RECORDED: horizon.recorded}
        # Both retentions at once: Delta refuses a log that is kept shorter than the files.
        names = (*horizon.properties(), *((RECORDED,) if RECORDED in wrong else ()))
        lake.table(table).set_properties({name: wanted[name] for name in names})
        found = ", ".join(f"{name} {value or 'not set'}" for name, value in wrong.items())
        told[table] = f"found {found}; set to the horizon of {horizon}"
        _LOG.warning("%s: table %s: %s", lake.location, table, told[table])
    return told


def wrong_properties(
    lake: LakeTables, replicas: Iterable[ReplicaTable], horizon: Horizon
) -> dict[str, dict[str, str]]:
    found = {}
    for table in ("changes", *(replica.name for replica in replicas)):
        properties = lake.table(table).properties()
        wrong = {name: properties.get(name, "") for name in horizon.differing(properties)}
        if table == "changes" and properties.get(RECORDED) != horizon.recorded:
            wrong[RECORDED] = properties.get(RECORDED, "")
        if wrong:
            found[table] = wrong
    return found


def recorded_horizon(lake: LakeTables) -> Horizon:
    """Return the horizon that the newest run kept, whatever the table properties say."""
    properties = lake.changes.properties()
    if (seconds := properties.get(RECORDED)) is not None:
        return Horizon(float(seconds))
    return Horizon(interval_seconds(properties.get(FILE_RETENTION, "")) or 7 * 86400)
