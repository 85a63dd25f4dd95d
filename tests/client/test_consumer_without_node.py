"""A vbucket that no node serves yet: the consumer asks for a newer map now and then."""

import json
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest

from dcp.client.consumer import Consumer
from dcp.server.commands.session import CommandHandler, Session
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode
from tests.client.conftest import MakeCluster
from tests.client.consuming import consuming, node_addresses, owned, settings, starts
from tests.client.drained import Drained, assert_same_state, caught_up, fill


def listen(consumer: Consumer, drained: Drained, seconds: float) -> None:
    """Take what comes in this time."""
    until = monotonic() + seconds
    while monotonic() < until:
        delivery = consumer.next(0.1)
        if delivery is not None:
            drained.take(delivery)
            drained.release_all()


def test_a_map_that_names_no_node_is_asked_for_again_now_and_then(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody pushes the one that does: many servers do not."""
    cluster = make_cluster(nodes=2)
    fill(cluster, 200)
    ownerless, others = owned(cluster, 1), owned(cluster, 0)
    as_json, carry_out = ServedClusterMap.as_json, Session._carry_out
    has_owner, asked = False, 0

    def map_of_now(cluster_map: ServedClusterMap, node: int) -> bytes:
        tree = json.loads(as_json(cluster_map, node))
        for vbucket in ownerless:
            row = tree["vBucketServerMap"]["vBucketMap"][vbucket]
            row[0] = row[0] if has_owner else -1
        return json.dumps(tree | {"rev": tree["rev"] + has_owner}).encode()

    def counting(session: Session, command: CommandHandler, frame: Frame, *more: Any) -> None:
        nonlocal asked
        asked += frame.opcode == Opcode.GET_CLUSTER_CONFIG
        carry_out(session, command, frame, *more)

    monkeypatch.setattr(ServedClusterMap, "as_json", map_of_now)
    monkeypatch.setattr(Session, "_carry_out", counting)
    second = node_addresses(cluster)[1]
    wanted = [
        replace(each, address=None) if each.address == second else each for each in starts(cluster)
    ]
    with consuming(cluster, wanted, settings(node_deadline_seconds=60.0)) as consumer:
        drained = Drained().run(consumer, caught_up(cluster, *others))
        before = asked
        listen(consumer, drained, 2.0)
        assert 2 <= asked - before <= 30, "each 0.1 s, for all vbuckets together"
        has_owner = True
        drained.run(consumer, caught_up(cluster))
        assert not drained.stopped
        assert_same_state(cluster, drained)
