"""The nodes of a cluster that come and go, of this process and of others, and what they own."""

import logging
from collections.abc import Coroutine
from typing import Any

from dcp.errors import LocalProtocolError, SourceError
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.cluster_nodes import ClusterNodes
from dcp.producer.cluster_state import ClusterState, Invitation
from dcp.producer.entrance import Entrance
from dcp.producer.loop_thread import now
from dcp.producer.rebalance_orders import RebalanceOrders
from dcp.producer.settings import ClusterSettings

_LOG = logging.getLogger(__name__)


class ClusterMembers(ClusterNodes):
    """Who belongs to the cluster, and how vbuckets get to them."""

    def __init__(
        self, settings: ClusterSettings | None = None, entrance: Entrance | None = None
    ) -> None:
        super().__init__(settings, entrance)
        self._rebalances = RebalanceOrders(
            self.bucket,
            lambda node: self._nodes[node].awake,
            self._links,
            self._push_map,
            self._leave,
        )

    @property
    def rebalance_state(self) -> str:
        """``none``, ``running``, or ``failed:`` and why, of the last one."""
        return self._rebalances.state

    async def _shut_down(self) -> None:
        await self._rebalances.stop()
        await super()._shut_down()

    # --- nodes

    def add_node(self) -> int:
        """Start a node on free ports and return it; it owns nothing until ``rebalance``.

        Raises:
            ValueError: another process decides about the cluster.
            LocalProtocolError: the cluster does not run.
            OSError: the data folder cannot be written; there is no such node.
        """
        self.bucket.require_first("add node")
        if self._loop.is_inside:
            return self._open_node()
        added: list[int] = []
        self._loop.call(now(lambda: added.append(self._open_node())))
        return added[0]

    def _open_node(self) -> int:
        tls_port = None if self._tls is None else 0
        address = NodeAddress(self.settings.host, 0, 0, tls_port, tls_port)
        added = self.bucket.map.node_count
        node = self._node(added, address)
        node.listen()
        try:
            with self.bucket.lock, self.bucket.changing_map():
                self.bucket.map.add(node.address)
        except BaseException:
            node.close_ports()
            raise
        self._nodes[added] = node
        with self.bucket.lock:
            self.bucket.local_nodes.add(added)
        self._loop.call_soon(self._push_map)
        return added

    def _require_room(self) -> None:
        self.bucket.require_first("join")
        if self.settings.data_folder is not None:
            raise ValueError(
                "join: found a cluster that keeps its bucket in a data folder, expected one in "
                "memory: other processes have no part of the folder"
            )

    def invitation(self) -> Invitation:
        """Return what a process must know that wants to be a node of this cluster.

        Raises:
            ValueError: another process decides about it, or it is kept in a data folder.
        """
        self._require_room()
        return Invitation(self._links.state(), self.bucket.node_credentials.password)

    def join(self, address: NodeAddress) -> tuple[int, ClusterState]:
        """Take in a node of another process that listens there; it owns nothing yet.

        One that was here before, at the same host and port, has the number that it had. To be
        called in the loop. Returns the node, and the cluster with it.

        Raises:
            ValueError: as ``invitation``; the node is in this process, or the map still says that
                it owns vbuckets, which it has no more.
        """
        self._require_room()
        with self.bucket.lock:
            cluster_map = self.bucket.map
            node = cluster_map.find(address)
            if node is None:
                node = cluster_map.add(address)
            elif self.bucket.is_local(node):
                raise ValueError(f"join: {cluster_map.name_of(node)} is in the first process")
            elif owned := len(cluster_map.vbuckets_of(node)):
                raise ValueError(
                    f"join: {cluster_map.name_of(node)} still owns {owned} vbuckets, which were "
                    "lost with its process; fail it over first"
                )
            else:
                cluster_map.join_again(node, address)
            self.bucket.dead_nodes.discard(node)
        self._links.add(node)
        self._loop.call_soon(self._push_map)
        return node, self._links.state()

    def is_heard(self, node: int) -> bool:
        """Whether a node of another process answers; ``bucket.copies_moved`` tells of changes."""
        return self._links.is_alive(node)

    def wait_until_told(self, timeout_seconds: float = 10.0) -> None:
        """Return when all other processes that live know the cluster as it is now.

        Raises:
            TimeoutError: they did not answer.
            LocalProtocolError: the cluster does not run.
        """
        if not self._loop.is_running:
            raise LocalProtocolError("producer cluster: it does not run")
        told = self._loop.begin(self._links.told())
        try:
            told.result(timeout_seconds)
        except TimeoutError:
            told.cancel()
            raise TimeoutError(f"other processes: not told in {timeout_seconds} seconds") from None

    # --- vbuckets

    def rebalance(self, remove: int | None = None, timeout_seconds: float = 60.0) -> None:
        """Let all members own evenly many vbuckets, and place the copies anew.

        Each vbucket that must move does so by a takeover stream into its new node: no branch
        begins, its streams end (state changed), a new map is pushed. For an instant it takes no
        writes: clients are answered NOT_MY_VBUCKET, ``set`` and the like wait. ``remove`` names a
        node that gives all away and goes. Returns when the owners are right; copies may still be on
        their way (``wait_until_replicated``). An order over the protocol does not wait:
        ``rebalance_state`` tells, and ``ClusterSettings.rebalance_timeout_seconds`` is its time.
        ``rebalance_orders.py`` says what becomes of it when something else is ordered meanwhile.

        Raises:
            ValueError: it cannot be done as things are: a member that is dead, no other node to
                take what there is, a vbucket that is not active, or one runs already.
            SourceError: a node was lost or failed over meanwhile; another call goes on from there.
            TimeoutError: it took too long, and was given up.
            OSError: the data folder cannot be written; another call goes on from there, too.
            LocalProtocolError: the cluster does not run.
        """
        if not self._loop.is_running:
            raise LocalProtocolError("producer cluster: it does not run")
        self.bucket.require_first("rebalance")
        if self._loop.is_inside:
            timeout_seconds = self.settings.rebalance_timeout_seconds
            self._loop.call(_say_if_it_fails(self._rebalances.begin(remove, timeout_seconds)))
            return
        work = self._rebalances.begin(remove, timeout_seconds)
        self._loop.begin(work).result()

    def _wait_for_rebalance(self) -> None:
        """Return when one that was given up is over; at once for who cannot wait."""
        if self._loop.is_running and not self._loop.is_inside:
            self._loop.call(self._rebalances.over())


async def _say_if_it_fails(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except (SourceError, OSError) as error:  # TimeoutError is one
        _LOG.warning("%s", error)
