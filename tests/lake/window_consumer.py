"""A process that reads vbuckets as a task of an executor does: `test_policies_live` starts several.

Says one line for each change of what it has: its rows, or the smallest of its windows.
"""

import json
import sys
from pathlib import Path
from time import monotonic

from dcp.client.consumer import Consumer
from dcp.client.settings import ConsumerSettings
from dcp.client.vbucket_track import StreamStart
from dcp.lake.executor_windows import ExecutorWindows
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.protocol.events import Items
from dcp.protocol.position import Position
from tests.client.connecting import settings
from tests.client.drained import CREDENTIALS


def main(folder: str, quota: str, seed: str, vbucket: str, rows_to_end: str) -> None:
    """Read until so many rows were read."""
    flow = FlowControlSettings(window_policy="aggressive", window_quota_bytes=int(quota))
    windows = ExecutorWindows(flow, Path(folder))
    start = StreamStart(int(vbucket), None, Position.beginning())
    chosen = ConsumerSettings(settings(window_bytes=flow.fixed_window_bytes))
    rows = 0
    told: tuple[int, int | None] = -1, -1
    with Consumer([start], [seed], chosen, CREDENTIALS, windows=windows) as consumer:
        deadline = monotonic() + 240
        while rows < int(rows_to_end) and monotonic() < deadline:
            delivery = consumer.next(0.05)
            if delivery is not None:
                rows += sum(len(e.columns) for e in delivery.events if isinstance(e, Items))
                consumer.release(delivery)
            if told != (rows, consumer.least_window_bytes):
                told = rows, consumer.least_window_bytes
                print(json.dumps(told), flush=True)
    windows.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
