"""Tells whether a command has so much to do that Java's best code pays (`jvm_options`).

That is asked before Spark starts. Of a lake in a store or a catalog it is not known by then.
"""

from collections.abc import Callable, Mapping

from dcp.errors import LakeError
from dcp.lake.config.lake_root import local_root
from dcp.lake.log.applied import replica_status
from dcp.lake.log.changes import latest_round
from dcp.lake.log.round_records import positions_at
from dcp.lake.spark.jvm_options import MANY_CHANGES, MANY_DOCUMENTS
from dcp.lake.tables.opening import refuse_to_start
from dcp.lake.tables.tables import LakeLocation, LakeTables, find_lake, replicas_in


def is_large_load(location: LakeLocation, high_seqnos: Mapping[int, int]) -> bool:
    """Return whether the log lacks many changes; ``high_seqnos`` are the cluster's, by vbucket."""

    def missing(lake: LakeTables | None) -> int:
        held = {} if lake is None else positions_at(lake, latest_round(lake))
        return _missing(high_seqnos, {vb: state.position.seqno for vb, state in held.items()})

    return _is_at_least(MANY_CHANGES, missing, location)


def is_large_parse(location: LakeLocation) -> bool:
    """Return whether the log has many documents that the table furthest behind does not have."""

    def missing(lake: LakeTables | None) -> int:
        if lake is None:
            return 0
        applied = min((replica_status(lake, each).round for each in replicas_in(lake)), default=0)
        newest, held = (
            {vb: state.complete_seqno for vb, state in positions_at(lake, number).items()}
            for number in (latest_round(lake), applied)
        )
        return _missing(newest, held)

    return _is_at_least(MANY_DOCUMENTS, missing, location)


def _is_at_least(
    many: int, count: Callable[[LakeTables | None], int], location: LakeLocation
) -> bool:
    if location.root is None or local_root(location.root) is None:
        return False
    try:
        return count(find_lake(refuse_to_start, location)) >= many
    except LakeError:
        return False


def _missing(seqnos: Mapping[int, int], held: Mapping[int, int]) -> int:
    return sum(max(0, seqno - held.get(vbucket, 0)) for vbucket, seqno in seqnos.items())
