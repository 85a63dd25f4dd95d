"""What a process asks that wants to be a node of this cluster: ``cluster``, then ``node.join``.

The answer to the first has the password of the nodes' own user: administrators may ask.
"""

import json
from typing import Final, Protocol

from dcp.producer.cluster_map import NodeAddress
from dcp.producer.cluster_state import ClusterState, Invitation
from dcp.producer.session import Session
from dcp.types import U16_MAX
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.json_tree import MOST_REQUEST_JSON_BYTES, json_tree
from dcp.wire.vocabulary import Status

JOIN: Final = b"node.join"


class Host(Protocol):
    """A cluster that other processes may join. Raises ValueError where they may not."""

    def invitation(self) -> Invitation:
        """Return what a process must know that wants to be a node."""

    def join(self, address: NodeAddress) -> tuple[int, ClusterState]:
        """Take in a node of another process; return it, and the cluster with it."""


def cluster(session: Session) -> str:
    """Return what a process must know, as JSON.

    Raises:
        ValueError: nobody may join here.
    """
    return _host(session).invitation().encode().decode()


def join(session: Session, frame: Frame, value: bytes) -> None:
    """Take in the node that listens at an address."""
    try:
        node, state = _host(session).join(_address(value))
    except ValueError as error:
        session.refuse(frame, Status.EINVAL, str(error))
    else:
        tree = {"node": node, "state": state.tree()}
        session.reply(frame, m.Text(json.dumps(tree).encode()))


def _address(value: bytes) -> NodeAddress:
    try:
        address = NodeAddress(**json_tree(value, MOST_REQUEST_JSON_BYTES))
    except (ValueError, TypeError):
        raise ValueError("node.join: expected the address of a node as JSON") from None
    host: object = address.host
    ports = [address.kv, address.mgmt, *(p for p in (address.kv_tls, address.mgmt_tls) if p)]
    if not isinstance(host, str) or not all(_is_port(port) for port in ports):
        raise ValueError(f"node.join: found host {host!r}, ports {ports}, expected others")
    return address


def _is_port(port: object) -> bool:
    return isinstance(port, int) and 1 <= port <= U16_MAX


def _host(session: Session) -> Host:
    administrator = session.bucket.administrator
    if administrator is None:
        raise ValueError("join: found a bucket of no cluster, expected one of a ProducerCluster")
    return administrator.members
