"""A node of a cluster that another process began: it asks to be let in, and follows from then on.

The first process decides about map, members and manifest; what it says last is what holds here. If
it goes away this one serves what it has. Orders to the cluster are refused with its address.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from dcp.errors import ConfigError, LocalProtocolError
from dcp.producer.admin_client import AdminClient
from dcp.producer.bucket import Bucket
from dcp.producer.entrance import MakeNode, addresses_to_take
from dcp.producer.follower import Follower
from dcp.producer.server import Node
from dcp.producer.settings import ClusterSettings
from dcp.producer.taking import Taking

NOT_JOINED: Final = -1


class Joining:
    """The entrance of one node; ``settings`` say where it listens, and to whom.

    What the bucket is like, and how many copies there are, the first process says.
    """

    def __init__(self, settings: ClusterSettings, first: str) -> None:
        """Ask the process at ``first`` (``host:port``) what its cluster is.

        Raises:
            ConfigError: a data folder, more than one node, or ``first`` is no address.
            SourceError: nobody answers there, refuses us, or is no cluster to join.
        """
        if settings.data_folder is not None or settings.nodes != 1:
            raise ConfigError(
                "node that joins: found a data folder or several nodes, expected one node in "
                "memory: the others begin with copies that are fed anew"
            )
        self.number = NOT_JOINED
        """The index of the node, once it has joined."""
        self._first = first
        with self._client(settings) as client:
            state = (invitation := client.invitation()).state
        self.settings = replace(
            settings,
            vbuckets=len(state.owners),
            replicas=state.replica_count,
            bucket_type=state.bucket_type,
            rules=state.rules,
        )
        self.bucket = Bucket(self.settings, invitation)
        self.bucket.led_by = state.first_address
        self._taking: Taking | None = None

    def _client(self, settings: ClusterSettings) -> AdminClient:
        user, password = next(iter(settings.users.items()))
        seconds = settings.member_timeout_seconds
        return AdminClient([self._first], user, password, settings.bucket, seconds)

    async def open(
        self, _: Mapping[int, Node], make: MakeNode, map_changed: Callable[[], None]
    ) -> dict[int, Node]:
        """Be let in, once, and listen."""
        if self.number != NOT_JOINED:
            raise LocalProtocolError(
                "node that joins: start() of one that ran already; make another"
            )
        (address,) = addresses_to_take(self.settings)
        node, bucket, loop = make(NOT_JOINED, address), self.bucket, asyncio.get_running_loop()
        self._taking = Taking(bucket, lambda _: node.awake, map_changed)
        follower = Follower(bucket, self._taking, lambda: loop.call_soon(map_changed))
        try:
            node.bind()
            with self._client(self.settings) as client:  # nobody else wants this loop yet
                self.number, state = client.join(node.address)
            node.node = self.number
            with bucket.lock:
                bucket.local_nodes.add(self.number)
                follower.follow(state)
                bucket.member = follower
            node.listen()
        except BaseException:
            await node.kill()
            node.leave_ports()
            raise
        return {self.number: node}

    async def close(self) -> None:
        """Take nothing over any more."""
        if self._taking is not None:
            await self._taking.stop()
