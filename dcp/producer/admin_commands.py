"""Administrative commands of a running cluster, by kv_engine's opcodes IOCTL_SET and IOCTL_GET.

    IOCTL_SET   node.failover      N                promote the replicas of node N's vbuckets
                node.kill          N                close its port and connections
                node.restore       N                bring it back; after a failover, empty
                node.add                            start a node that owns nothing yet
                rebalance          [N]              spread the vbuckets evenly; N leaves
                replication        paused|running   stop the replicas, or continue
                scope.create       SCOPE
                scope.drop         SCOPE            with its collections
                collection.create  SCOPE.NAME [TTL] TTL: the longest life of a document, in seconds
                collection.drop    SCOPE.NAME
                collection.flush   SCOPE.NAME       drop its documents, keep the collection
    IOCTL_GET   nodes                               the nodes as JSON
                rebalance                           none, running, or ``failed:`` with the reason
                replication                         paused or running

The keys are our own; nodes count from 1. An order has taken effect when it is answered, except for
a rebalance. Source: kv_engine ``include/mcbp/protocol/opcode.h``, ``daemon/mcbp_privileges.cc``
(EACCESS without the Administrator privilege).
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol, cast

from dcp.producer.bucket import bucket_of
from dcp.producer.manifest_changes import (
    CreateCollection,
    CreateScope,
    DropCollection,
    DropScope,
    FlushCollection,
    ManifestChange,
)
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.model.refused_error import RefusedError
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status


class Administrator(Protocol):
    """Carries out administrative orders, which ``ProducerCluster`` documents.

    Nodes are indexes from 0; refusals raise ValueError.
    """

    def failover(self, node: int) -> None: ...

    def kill_node(self, node: int) -> None: ...

    def restore_node(self, node: int) -> None: ...

    @property
    def rebalance_state(self) -> str:
        """``none``, ``running``, or ``failed:`` with the reason."""

    def add_node(self) -> int: ...

    def rebalance(self, remove: int | None = None) -> None: ...

    def pause_replication(self) -> None: ...

    def resume_replication(self) -> None: ...

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Raises RefusedError for an impossible change."""


def _node(session: Session, value: str) -> int:
    count = session.bucket.map.node_count
    if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= count):
        raise ValueError(f"node: found {value!r}, expected a number from 1 to {count}")
    return int(value) - 1


def _failover(administrator: Administrator, session: Session, value: str) -> None:
    administrator.failover(_node(session, value))


def _kill(administrator: Administrator, session: Session, value: str) -> None:
    administrator.kill_node(_node(session, value))


def _restore(administrator: Administrator, session: Session, value: str) -> None:
    administrator.restore_node(_node(session, value))


def _add(administrator: Administrator, _: Session, value: str) -> None:
    if value:
        raise ValueError(f"node.add: found {value!r}, expected no value")
    administrator.add_node()


def _rebalance(administrator: Administrator, session: Session, value: str) -> None:
    administrator.rebalance(_node(session, value) if value else None)


def _replication(administrator: Administrator, _: Session, value: str) -> None:
    orders = {
        "paused": administrator.pause_replication,
        "running": administrator.resume_replication,
    }
    if value not in orders:
        raise ValueError(f"replication: found {value!r}, expected paused or running")
    orders[value]()


def _change(make: Callable[[str], ManifestChange]) -> Callable[[Administrator, Session, str], None]:
    def order(administrator: Administrator, _: Session, value: str) -> None:
        administrator.change_manifest(make(value))

    return order


def _path(value: str) -> tuple[str, str]:
    scope, dot, name = value.partition(".")
    if not scope or not dot:
        raise ValueError(f"path: found {value!r}, expected scope.collection")
    return scope, name


def _create_collection(value: str) -> ManifestChange:
    path, _, ttl = value.partition(" ")
    if ttl and not (ttl.isascii() and ttl.isdecimal()):
        raise ValueError(f"max_ttl: found {ttl!r}, expected a number of seconds")
    return CreateCollection(*_path(path), int(ttl) if ttl else None)


_ORDERS: Final[Mapping[str, Callable[[Administrator, Session, str], None]]] = {
    "node.failover": _failover,
    "node.kill": _kill,
    "node.restore": _restore,
    "node.add": _add,
    "rebalance": _rebalance,
    "replication": _replication,
    "scope.create": _change(CreateScope),
    "scope.drop": _change(DropScope),
    "collection.create": _change(_create_collection),
    "collection.drop": _change(lambda value: DropCollection(*_path(value))),
    "collection.flush": _change(lambda value: FlushCollection(*_path(value))),
}


def _may_order(session: Session, frame: Frame) -> bool:
    """Return whether the client is an administrator; otherwise refuse the request."""
    if session.bucket.settings.is_administrator(session.login.user):
        return True
    session.refuse_access(frame, Status.EACCESS, "The user lacks the Administrator privilege")
    return False


def ioctl_set(
    administrator: Administrator, session: Session, frame: Frame, body: m.Body, _: float
) -> None:
    request = cast("m.IoctlSet", body)
    if not _may_order(session, frame):
        return
    order = _ORDERS.get(request.name.decode("utf-8", "replace"))
    if order is None:
        _refuse_key(session, frame, request.name, _ORDERS)
        return
    try:
        order(administrator, session, request.value.decode("utf-8", "replace"))
    except (ValueError, RefusedError) as error:
        session.refuse(frame, Status.EINVAL, str(error))
    except OSError as error:  # the data folder cannot be written
        session.refuse(frame, Status.ETMPFAIL, str(error))
    else:
        session.reply(frame, m.Text())


def _nodes(_: Administrator, session: Session) -> str:
    bucket = session.bucket
    found = [
        {
            "number": node + 1,
            "address": address.at(address.kv),
            "member": bucket.map.is_member(node),
            "alive": node not in bucket.map.down_nodes,
            "vbuckets": len(bucket.map.vbuckets_of(node)),
        }
        for node, address in enumerate(bucket.map.addresses)
    ]
    return json.dumps(found)


def _replication_state(_: Administrator, session: Session) -> str:
    paused = bucket_of(session).replica_progress.is_paused
    return "paused" if paused else "running"


def _rebalance_state(administrator: Administrator, _: Session) -> str:
    return administrator.rebalance_state


_QUESTIONS: Final[Mapping[str, Callable[[Administrator, Session], str]]] = {
    "nodes": _nodes,
    "rebalance": _rebalance_state,
    "replication": _replication_state,
}


def ioctl_get(
    administrator: Administrator, session: Session, frame: Frame, body: m.Body, _: float
) -> None:
    if not _may_order(session, frame):
        return
    name = cast("m.IoctlGet", body).name
    question = _QUESTIONS.get(name.decode("utf-8", "replace"))
    if question is None:
        _refuse_key(session, frame, name, _QUESTIONS)
    else:
        session.reply(frame, m.Text(question(administrator, session).encode()))


def _refuse_key(session: Session, frame: Frame, name: bytes, known: Mapping[str, object]) -> None:
    found = name.decode("utf-8", "replace")
    session.refuse(frame, Status.EINVAL, f"key: found {found!r}, expected {', '.join(known)}")


def admin_commands(administrator: Administrator) -> dict[int, CommandHandler]:
    return {
        Opcode.IOCTL_SET: CommandHandler(Access.USER, partial(ioctl_set, administrator)),
        Opcode.IOCTL_GET: CommandHandler(Access.USER, partial(ioctl_get, administrator)),
    }
