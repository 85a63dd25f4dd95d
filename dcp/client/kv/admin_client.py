"""Sends administrative commands to a cluster of ``dcplake serve`` (``admin_commands.py``)."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from dcp.client.kv.kv_connection import KvConnection
from dcp.errors import DcplakeError, NodeUnavailableError, RemoteProtocolError, SourceError
from dcp.protocol.credentials import Secret
from dcp.protocol.refusals import describe_status, error_context, raise_refusal
from dcp.seeds import parse_seed
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.json_tree import json_tree
from dcp.wire.vocabulary import Opcode, Status

_ASK_AGAIN_SECONDS: Final = 0.05


class NodeStatus(NamedTuple):
    """One node."""

    number: int
    """From 1, in the order of the ports."""
    address: str
    member: bool
    """True until the node is failed over."""
    alive: bool
    """True until the node is killed or failed over."""
    vbuckets: int


class AdminClient:
    """A connection to the first node that answers. Use it in one thread.

    An order raises SourceError, with the reason, if the cluster refuses it: also if the user is no
    administrator.
    """

    def __init__(
        self,
        seeds: Sequence[str],
        user: str,
        password: str,
        bucket: str,
        timeout_seconds: float = 30.0,
    ) -> None:
        """Connect and sign in.

        Raises:
            ConfigError: a seed is no ``host:port``.
            NodeUnavailableError: no seed can be reached.
            AuthenticationError: user or password refused.
            BucketError: no such bucket, or no access to it.
        """
        self._seeds, self._timeout_seconds = seeds, timeout_seconds
        self._user, self._password, self._bucket = user, Secret(password), bucket
        self._connect()

    def _connect(self) -> None:
        failures: list[SourceError] = []
        for host, port in map(parse_seed, self._seeds):
            try:
                self._connection = self._signed_in(host, port)
            except SourceError as error:
                failures.append(error)
            else:
                return
        raise_refusal(failures)
        raise NodeUnavailableError(
            f"no node answers: {'; '.join(map(str, failures)) or 'no seeds'}"
        )

    def _signed_in(self, host: str, port: int) -> KvConnection:
        connection = KvConnection(host, port, self._timeout_seconds)
        try:
            connection.log_in(self._user, self._password.reveal(), self._bucket)
        except DcplakeError:
            connection.close()
            raise
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def failover(self, node: int) -> None:
        """Remove a node and promote the replicas of its vbuckets."""
        self._order("node.failover", str(node))

    def kill(self, node: int) -> None:
        """Close a node's port and connections."""
        self._order("node.kill", str(node))

    def add_node(self) -> NodeStatus:
        """Start a node that owns nothing until ``rebalance``, and return it."""
        self._order("node.add", "")
        return self.nodes()[-1]

    def rebalance(self, remove: int | None = None, timeout_seconds: float = 60.0) -> None:
        """Spread the vbuckets evenly over the nodes; return when it is done.

        Raises:
            SourceError: the cluster refuses, the rebalance fails, or it takes too long.
        """
        self._remember_members()
        self._order("rebalance", "" if remove is None else str(remove))
        give_up_at = time.monotonic() + timeout_seconds
        while (state := self._rebalance_state()) == "running":
            if time.monotonic() > give_up_at:
                raise SourceError(f"rebalance: still running after {timeout_seconds} seconds")
            time.sleep(_ASK_AGAIN_SECONDS)
        if state != "none":
            raise SourceError(f"rebalance {state}")

    def _rebalance_state(self) -> str:
        return self._ask_any("rebalance").decode("utf-8", "replace")

    def _remember_members(self) -> None:
        # The rebalance may remove the node that we ask, so remember the others.
        members = [node.address for node in self.nodes() if node.member and node.alive]
        self._seeds = list(dict.fromkeys([*self._seeds, *members]))

    def pause_replication(self) -> None:
        """Stop all replicas at their present seqnos."""
        self._order("replication", "paused")

    def resume_replication(self) -> None:
        self._order("replication", "running")

    def create_collection(self, path: str) -> None:
        """``path`` is ``scope.name``."""
        self._order("collection.create", path)

    def nodes(self) -> list[NodeStatus]:
        found = self._ask_any("nodes")
        try:
            return [NodeStatus(**node) for node in json_tree(found)]
        except (ValueError, TypeError) as error:
            raise RemoteProtocolError(f"list of nodes: malformed: {error}") from error

    def _ask_any(self, name: str) -> bytes:
        """Ask, and ask another node if ours is gone."""
        try:
            return self._ask(name)
        except NodeUnavailableError:
            self.close()
            self._connect()
            return self._ask(name)

    def _ask(self, name: str) -> bytes:
        request = encode(m.IoctlGet(name.encode()), Opcode.IOCTL_GET)
        return self._checked(name, self._connection.call(request)).value

    def _order(self, name: str, value: str) -> None:
        # Not repeated at another node: the lost one may have carried it out.
        request = encode(m.IoctlSet(name.encode(), value.encode()), Opcode.IOCTL_SET)
        self._checked(f"{name} {value}", self._connection.call(request))

    def _checked(self, what: str, answer: Frame) -> Frame:
        if answer.status == Status.SUCCESS:
            return answer
        where = f"{what}: refused by {self._connection.name}"
        if answer.status == Status.UNKNOWN_COMMAND:
            raise SourceError(f"{where}: it knows no such command; is it a `dcplake serve`?")
        raise SourceError(
            f"{where}: {error_context(answer.value) or describe_status(answer.status)}"
        )
