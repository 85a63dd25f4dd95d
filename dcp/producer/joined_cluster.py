"""A node of a cluster that another process began: it asks to be let in, and follows from then on.

The first process decides about map, members and manifest; what it says last is what holds here. If
it goes away this one serves what it has. Orders to the cluster are refused with its address.
"""

from dataclasses import replace
from typing import Final

from dcp.errors import ConfigError, LocalProtocolError
from dcp.producer.admin_client import AdminClient
from dcp.producer.bucket import Bucket
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_nodes import addresses_to_take
from dcp.producer.follower import Follower
from dcp.producer.settings import ClusterSettings
from dcp.producer.taking import Taking

_NOT_JOINED: Final = -1


class JoinedCluster(ProducerCluster):
    """One node, and what it knows of the others; ``settings`` say where it listens, and to whom.

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
        self._first = first
        with self._client(settings) as client:
            state = (invitation := client.invitation()).state
        settings = replace(
            settings,
            vbuckets=len(state.owners),
            replicas=state.replica_count,
            bucket_type=state.bucket_type,
            rules=state.rules,
        )
        super().__init__(settings, Bucket(settings, invitation))
        self.number = _NOT_JOINED
        """The index of its node, once it has joined."""
        self._taking = Taking(self.bucket, lambda node: self._nodes[node].awake, self._push_map)
        self._follower = Follower(
            self.bucket, self._taking, lambda: self._call_soon(self._push_map)
        )
        self.bucket.member = self._follower
        self.bucket.led_by = state.first_address

    def _client(self, settings: ClusterSettings) -> AdminClient:
        user, password = next(iter(settings.users.items()))
        seconds = settings.member_timeout_seconds
        return AdminClient([self._first], user, password, settings.bucket, seconds)

    async def _listen(self) -> None:
        if self.number != _NOT_JOINED:
            raise LocalProtocolError(
                "node that joins: start() of one that ran already; make another"
            )
        (address,) = addresses_to_take(self.settings)
        node = self._node(_NOT_JOINED, address)
        try:
            node.bind()
            with self._client(self.settings) as client:  # nobody else wants this loop yet
                self.number, state = client.join(node.address)
            node.node = self.number
            self._nodes[self.number] = node
            with self.bucket.lock:
                self.bucket.local_nodes.add(self.number)
                self._follower.follow(state)
            node.listen()
        except BaseException:
            await node.kill()
            raise

    async def _shut_down(self) -> None:
        await self._taking.stop()
        await super()._shut_down()
