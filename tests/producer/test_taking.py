"""Moves that the first process orders: a newer one takes the older one's place."""

import asyncio

from dcp.producer.bucket import Bucket
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.move_orders import MoveOrder, MoveReport
from dcp.producer.settings import ClusterSettings
from dcp.producer.taking import Taking

HERE, ELSEWHERE = 0, 1


class _Silent:
    """A node that takes connections and says nothing."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.is_asked.set()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def test_a_newer_order_takes_the_place_of_an_older_one() -> None:
    """Also of one that waits: only the last one's vbuckets are being taken over in the end."""

    async def run() -> None:
        silent = _Silent()
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        bucket = Bucket(ClusterSettings(nodes=2, vbuckets=4))
        bucket.local_nodes.discard(ELSEWHERE)
        addresses = [NodeAddress(), NodeAddress(kv=port)]
        bucket.map.set_addresses(addresses)
        awake = asyncio.Event()
        awake.set()
        taking = Taking(bucket, lambda _: awake, lambda: None)
        assert taking.report() == MoveReport()
        taking.begin(MoveOrder(1, ELSEWHERE, HERE, (2,)))
        await silent.is_asked.wait()
        assert _taken_over(bucket) == {2}
        silent.is_asked.clear()
        for number in (2, 3, 3):  # the last one is said twice
            taking.begin(MoveOrder(number, ELSEWHERE, HERE, (2, 3)))
        await silent.is_asked.wait()
        assert _taken_over(bucket) == {2, 3}
        assert taking.report() == MoveReport(3, (), is_over=False)
        await taking.stop()
        assert _taken_over(bucket) == set()
        assert taking.report() == MoveReport(3, (), is_over=True)
        silent.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def _taken_over(bucket: Bucket) -> set[int]:
    found = bucket.copies.of_node(HERE).items()
    return {vbucket for vbucket, copy in found if copy.is_taking_over}
