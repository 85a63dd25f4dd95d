"""Makes the consumer of a task: its streams, its window, and the password of its machine."""

from dataclasses import replace
from socket import gethostname
from typing import Final

from dcp.client.consumer import Consumer
from dcp.client.vbucket_track import StreamStart
from dcp.errors import ConfigError
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.rounds.round_plan import StreamPlan, TaskPlan

_LEAST_WINDOW_BYTES: Final = 64 * 1024
_HERE: Final = "; tasks read the password where they run: docs/howto/give-tasks-the-password.md"


def task_consumer(plan: TaskPlan, access: SourceAccess, name: str) -> Consumer:
    """Return a task's consumer, which has not asked the source yet."""
    settings, backfill = access.consumer, plan.backfill
    window_bytes = plan.windows.window_bytes
    if backfill is not None and (rate := backfill.bytes_per_second) is not None:
        # At most a second ahead: what is under way at the end is lost.
        window_bytes = min(window_bytes, max(_LEAST_WINDOW_BYTES, int(rate)))
    connection = replace(settings.connection, window_bytes=window_bytes)
    try:
        credentials = access.source.credentials()
    except ConfigError as error:
        raise type(error)(f"a Spark task on {gethostname()}: {error}{_HERE}") from None
    return Consumer(
        [stream_start(stream) for stream in plan.streams],
        [str(node) for node in plan.seeds],
        replace(
            settings,
            connection=connection,
            reads_replicas=backfill is not None and backfill.reads_replicas,
        ),
        credentials,
        name,
    )


def stream_start(stream: StreamPlan) -> StreamStart:
    return StreamStart(
        stream.vbucket,
        stream.node,
        stream.position,
        stream.state.failover_log,
        purge_seqno=stream.state.purge_seqno,
    )
