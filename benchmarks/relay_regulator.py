"""Measures one pass of a relay's regulator, with many consumers of many vbuckets.

    make bench BENCH=relay_regulator ARGS="--consumers 200 --vbuckets 1024 --writes 2000"

The regulator, the relay's bucket, and consumers with a stream of each vbucket are the real ones, in
this process; there are no sockets, and nobody sends. Between two passes so many documents arrive as
come in the time that the pass took and the regulator then rests. Consumers have taken them all at
the next one (``level``), or nothing of them (``behind``: all that came is kept). Told are the time
of a pass, and which part of a core such passes take; the regulator's rests bound it to a third.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time

from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.bucket import NODE, RelayBucket
from dcp.relay.regulator import Regulator, rest_seconds
from dcp.relay.settings import RelaySettings
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.model.resume_rules import Verdict
from dcp.server.storage.stored_items import version_of
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import DcpClient
from dcp.types import END_OF_TIME, SnapshotRange
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode, OpenFlag, SnapshotFlag, Status

WINDOW_BYTES = 2**31
"""Nothing is far behind: who holds goes on holding."""
VALUE = b"x" * 200
STATES = ("idle", "level", "behind")


@dataclass(frozen=True, slots=True)
class _Client:
    """What the regulator looks at of a connection."""

    session: "_Client | None"
    dcp: DcpConnection | None
    taken_bytes: int = 0


class _Source:
    """A cluster to which nothing need be said."""

    def consumed(self, vbucket: int, frame_bytes: int) -> None:
        pass

    def release(self) -> None:
        pass

    def reconcile(self) -> None:
        pass


class Scene:
    """A relay's bucket and regulator, and its consumers."""

    def __init__(self, bucket: RelayBucket, settings: RelaySettings, consumers: int) -> None:
        self.bucket = bucket
        self.regulator = Regulator(
            bucket, settings.flow_spec, WINDOW_BYTES, 0.0, settings.consumer_ack_seconds, _Source()
        )
        self.consumers = [self._consumer(number) for number in range(consumers)]
        clients = [_Client(_Client(None, each), None) for each in self.consumers]
        self.regulator.follow(lambda: clients)  # type: ignore[arg-type, return-value]
        self._random = Random(1)
        self._written = 0

    def _consumer(self, number: int) -> DcpConnection:
        key = NODE, b"consumer-%d" % number
        client = DcpClient(key, int(OpenFlag.PRODUCER))
        consumer = self.bucket.dcp_connections.open(client, lambda: None)
        verdict = Verdict(Status.SUCCESS, None, 0, END_OF_TIME, 0)
        for vbucket in self.bucket.vbuckets:
            settings = consumer.stream_settings()
            consumer.add_stream(ActiveStream(vbucket.data, vbucket.id, verdict, 0, settings))
        while consumer.ready:
            consumer.next_frames(2**20)
        return consumer

    def write(self, count: int, *, is_taken: bool) -> None:
        """Let documents arrive, and be taken by all if they are."""
        for _ in range(count):
            vbucket = self._random.randrange(len(self.bucket.vbuckets))
            replica, self._written = self.bucket.replica(vbucket), self._written + 1
            seqno = replica.high_seqno + 1
            replica.begin_snapshot(SnapshotRange(seqno, seqno), int(SnapshotFlag.MEMORY), None)
            body = m.Mutation(by_seqno=seqno, rev_seqno=1, key=b"k%d" % self._written, value=VALUE)
            frame = encode(body, Opcode.DCP_MUTATION, vbucket=vbucket, cas=seqno).to_bytes()
            replica.receive(version_of(frame))
            self.bucket.writes.received(NODE, vbucket)
            self.regulator.received(vbucket, len(frame))
            if is_taken:
                for consumer in self.consumers:
                    for stream in consumer.streams.of({vbucket}):
                        stream.sent_seqno = seqno
        if is_taken:
            self.bucket.changes.collect()


@contextmanager
def scene(fc: str, consumers: int, vbuckets: int) -> Iterator[Scene]:
    """Make one on an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        settings = RelaySettings(
            upstream=("127.0.0.1:1",),
            bucket="default",
            credentials=Credentials("bench", Secret("bench")),
            data_folder=Path(folder),
            flow_spec=parse_flow_spec(fc),
        )
        bucket = RelayBucket(settings.served("bench", vbuckets))
        try:
            yield Scene(bucket, settings, consumers)
        finally:
            bucket.close()


async def measure(found: Scene, state: str, writes_per_second: int, seconds: float) -> str:
    """Return how long passes of a state take, in words."""
    took: list[float] = []
    rested = cpu = 0.0
    await found.regulator.regulate(is_tick=True)  # what came before is none of this state's
    until = perf_counter() + seconds
    while perf_counter() < until or len(took) < 3:
        began, cpu_before = perf_counter(), process_time()
        await found.regulator.regulate(is_tick=True)
        took.append(perf_counter() - began)
        cpu += process_time() - cpu_before
        rest = rest_seconds(took[-1])
        rested += rest
        if state != "idle":
            arrive = round(writes_per_second * (took[-1] + rest))
            with found.bucket.lock:
                found.write(arrive, is_taken=state == "level")
    share = cpu / (sum(took) + rested)
    longest, usual = max(took) * 1000, median(took) * 1000
    return f"{state:>8} | {usual:10.1f} | {longest:10.1f} | {share:8.1%} | {len(took):6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, default=200)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--fc", action="append", help="a strategy (max, min, a complete group)")
    parser.add_argument("--writes", type=int, default=2000, help="documents a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each state")
    arguments = parser.parse_args()
    consumers, vbuckets = arguments.consumers, arguments.vbuckets
    usual = ["max", "min,t:3600s", f"min,g:/{consumers},t:3600s"]
    for fc in arguments.fc or usual:
        with scene(fc, consumers, vbuckets) as found:
            print(f"--fc {fc}: {consumers} consumers, {vbuckets} vbuckets", flush=True)
            print("   state |  median ms |     max ms | of a core | passes", flush=True)
            for state in STATES:
                print(
                    asyncio.run(measure(found, state, arguments.writes, arguments.seconds)),
                    flush=True,
                )


if __name__ == "__main__":
    main()
