"""Orders of a cluster's first process to the others, over the protocol: IOCTL_SET and IOCTL_GET.

    IOCTL_SET   cluster.state    JSON      follow this state of the cluster (``cluster_state.py``)
                vbuckets.take    JSON      take vbuckets over from a node (``move_orders.py``)
                vbuckets.leave             take no more of them
    IOCTL_GET   vbuckets.taken             how far that is, as JSON

Only the cluster's own user may send them, and each may be sent again: what was done is not done
twice.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from dcp.errors import RemoteProtocolError
from dcp.producer.auth import REPLICATION_USER
from dcp.producer.cluster_state import ClusterState
from dcp.producer.move_orders import MoveOrder, MoveReport
from dcp.producer.session import Session
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Status

STATE: Final = b"cluster.state"
TAKE: Final = b"vbuckets.take"
LEAVE: Final = b"vbuckets.leave"
TAKEN: Final = b"vbuckets.taken"


class Member(Protocol):
    """A process that follows the first one."""

    def follow(self, state: ClusterState) -> None:
        """Let all be as the state says; an older one than is known changes nothing."""

    def take(self, order: MoveOrder) -> None:
        """Begin to take vbuckets over, if that was not begun."""

    def leave(self) -> None:
        """Take no more vbuckets over than have arrived."""

    def report(self) -> MoveReport:
        """Return how far the last move is."""


_ORDERS: Final[Mapping[bytes, Callable[[Member, bytes], None]]] = {
    STATE: lambda member, value: member.follow(ClusterState.decode(value)),
    TAKE: lambda member, value: member.take(MoveOrder.decode(value)),
    LEAVE: lambda member, _: member.leave(),
}


def member_of(session: Session) -> Member | None:
    """Return whom orders of the first process are for; None where the client is not that."""
    return session.bucket.member if session.user == REPLICATION_USER else None


def order_of_first(session: Session, frame: Frame, request: m.IoctlSet) -> None:
    """Carry out an order of the first process."""
    member, order = member_of(session), _ORDERS.get(request.name)
    if member is None or order is None:
        name = request.name.decode("utf-8", "replace")
        session.refuse(frame, Status.EINVAL, f"order between processes: found {name!r}")
        return
    try:
        order(member, request.value)
    except RemoteProtocolError as error:
        session.refuse(frame, Status.EINVAL, str(error))
    else:
        session.reply(frame, m.Text())


def answer(member: Member, name: bytes) -> bytes | None:
    """Return the answer to a question; None where there is none of that name."""
    return member.report().encode() if name == TAKEN else None
