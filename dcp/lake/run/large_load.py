"""Tells whether a command has so much to do that Java's best code pays (`jvm_options`).

That is asked before Spark starts. Of a lake in a store or a catalog it is not known by then.
"""

from collections.abc import Mapping

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
    if not _is_readable(location):
        return False
    try:
        lake = find_lake(refuse_to_start, location)
        held = {} if lake is None else positions_at(lake, latest_round(lake))
    except LakeError:
        return False
    seqnos = {vbucket: state.position.seqno for vbucket, state in held.items()}
    return _missing(high_seqnos, seqnos) >= MANY_CHANGES


def is_large_parse(location: LakeLocation) -> bool:
    """Return whether the log has many documents that the table furthest behind does not have."""
    if not _is_readable(location):
        return False
    try:
        lake = find_lake(refuse_to_start, location)
        if lake is None:
            return False
        newest = _complete_seqnos(lake, latest_round(lake))
        applied = min((replica_status(lake, each).round for each in replicas_in(lake)), default=0)
        return _missing(newest, _complete_seqnos(lake, applied)) >= MANY_DOCUMENTS
    except LakeError:
        return False


def _is_readable(location: LakeLocation) -> bool:
    return location.root is not None and local_root(location.root) is not None


def _complete_seqnos(lake: LakeTables, round_number: int) -> dict[int, int]:
    states = positions_at(lake, round_number)
    return {vbucket: state.complete_seqno for vbucket, state in states.items()}


def _missing(seqnos: Mapping[int, int], held: Mapping[int, int]) -> int:
    return sum(max(0, seqno - held.get(vbucket, 0)) for vbucket, seqno in seqnos.items())
