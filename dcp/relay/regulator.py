"""Who decides how far the cluster may send: for now all is freed as soon as it is here."""

import asyncio

from dcp.producer.dcp_connection import DcpConnection
from dcp.relay.upstream import Upstream


class Regulator:
    """Frees at once what streams bring, and wants all of them."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def received(self, vbucket: int, frame_bytes: int) -> None:
        """Free what a stream brought."""
        self._upstream.release(vbucket, frame_bytes)

    def ended(self, vbucket: int) -> None:
        """Do nothing: nothing is held."""

    def rolled_back(self, vbucket: int) -> None:
        """Do nothing: nothing is held."""

    def holds(self, _: int) -> bool:
        """Want all streams."""
        return False

    def came_early(self, consumer: DcpConnection, vbucket: int) -> None:
        """Do nothing: nobody is waited for."""

    async def run(self) -> None:
        """Do nothing, for ever."""
        await asyncio.Event().wait()
