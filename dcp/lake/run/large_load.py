"""Tells whether a run has so much to do that Java's best code pays (`jvm_options`).

That is asked before Spark starts: of a lake that Spark alone can read it is not known by then.
"""

from collections.abc import Mapping

from dcp.lake.config.settings import Settings
from dcp.lake.log.changes import latest_round
from dcp.lake.log.round_records import positions_at
from dcp.lake.spark.jvm_options import MANY_CHANGES
from dcp.lake.tables.opening import NeedsSparkError, store_without_spark
from dcp.lake.tables.tables import find_lake


def is_large_load(settings: Settings, high_seqnos: Mapping[int, int]) -> bool:
    """Return whether the log lacks many changes; ``high_seqnos`` are the cluster's, by vbucket."""
    if sum(high_seqnos.values()) < MANY_CHANGES:
        return False  # without requests to a store
    try:
        lake = find_lake(store_without_spark(settings))
        held = {} if lake is None else positions_at(lake, latest_round(lake))
    except NeedsSparkError:
        return False
    seqnos = {vbucket: state.position.seqno for vbucket, state in held.items()}
    missing = (max(0, high - seqnos.get(vbucket, 0)) for vbucket, high in high_seqnos.items())
    return sum(missing) >= MANY_CHANGES
