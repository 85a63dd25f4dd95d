"""Asks the nodes, before a round, which vbuckets they will order back.

Each stream of the plan is asked for as the round will do it, but for nothing beyond its position.
A node that agrees ends such a stream at once, without a row (kv_engine
``engines/ep/src/dcp/active_stream.cc``); another orders the rollback. So the node's own rule
decides: after a failover, and where it purged deletions that the lake has not read, unless the lake
knows of just that purge. It takes no rights but a run's: statistics, which tell purge seqnos, need
a further role.
"""

import logging
from dataclasses import replace
from typing import Final

from dcp.client.consumer import Consumer
from dcp.client.consumer_events import VbucketStopped
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.receive.task_consumer import stream_start
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.tables.rollback_order import RollbackOrder
from dcp.printable import number_ranges
from dcp.protocol.events import FailoverLogReceived, RollbackOrdered, StreamOpened

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "dcplake-plan"
_WAIT_SECONDS: Final = 1.0


def orders_ahead(plan: RoundPlan, access: SourceAccess) -> dict[int, RollbackOrder]:
    """Return the orders that the streams of a plan will get, by vbucket.

    Vbuckets whose node does not answer within `round.node_deadline_seconds` are logged.
    """
    starts = [
        replace(stream_start(stream), end_seqno=stream.state.position.seqno)
        for stream in plan.streams
        if stream.state.position.seqno and not stream.begins_epoch
    ]
    if not starts:
        return {}
    # A member of a relay's group would hold others back.
    connection = replace(access.consumer.connection, receiver_group_tag=None)
    settings = replace(access.consumer, connection=connection)
    seeds = [str(node) for node in plan.tasks[0].seeds]
    orders: dict[int, RollbackOrder] = {}
    waiting = {start.vbucket for start in starts}
    unknown: dict[str, list[int]] = {}
    with Consumer(starts, seeds, settings, access.source.credentials(), _NAME) as consumer:
        while waiting:
            delivery = consumer.next(_WAIT_SECONDS)
            for event in () if delivery is None else delivery.events:
                match event:
                    case RollbackOrdered(vbucket, asked, seqno):
                        orders[vbucket] = RollbackOrder(asked.seqno, seqno, asked.vb_uuid)
                    case FailoverLogReceived(vbucket, log) if vbucket in orders:  # right behind it
                        orders[vbucket] = replace(orders[vbucket], failover_log=log)
                        waiting.discard(vbucket)
                    case StreamOpened(vbucket):
                        waiting.discard(vbucket)
                    case VbucketStopped(vbucket, _, detail) if vbucket in waiting:
                        unknown.setdefault(detail, []).append(vbucket)
                        waiting.discard(vbucket)
    for detail, vbuckets in unknown.items():
        told = number_ranges(vbuckets)
        _LOG.warning("vbuckets %s: not known if they are ordered back: %s", told, detail)
    return orders
