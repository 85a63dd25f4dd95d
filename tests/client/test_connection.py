"""One connection over a real socket: all rows are delivered exactly, and later reads change none.

Opening, back-pressure, commands and the end of a connection are tried in ``test_connection_*.py``.
"""

import pytest

from dcp.protocol.events import Items
from dcp.protocol.position import Position
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected
from tests.client.drained import Drained, assert_same_state, caught_up, fill


def test_delivers_all_documents_and_answers_questions(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    fill(cluster, 500)
    with connected(cluster) as connection:
        seqnos = connection.all_vb_seqnos()
        assert seqnos == {vbucket: cluster.high_seqno(vbucket) for vbucket in range(8)}
        assert connection.failover_logs([3]) == {3: cluster.failover_log(3)}
        assert b"vBucketServerMap" in connection.cluster_config()
        for vbucket in range(8):
            connection.open_stream(vbucket, START)
        drained = Drained().run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert drained.positions == {
            vbucket: Position.complete_at(cluster.failover_log(vbucket).current_uuid, seqno)
            for vbucket, seqno in seqnos.items()
        }


def test_rows_are_not_changed_by_later_reads(make_cluster: MakeCluster) -> None:
    """Deliveries must not refer to the read buffer, which is used again."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 2000, value_bytes=300)
    with connected(cluster, read_buffer_bytes=8192) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster), release=False)
        kept = [
            event.columns
            for each in drained.unacknowledged
            for event in each.events
            if isinstance(event, Items)
        ]
        assert len(kept) > 20
        values = {
            key: value
            for columns in kept
            for key, value in zip(columns.key.to_pylist(), columns.value.to_pylist(), strict=True)
        }
        state = cluster.state_at(0, cluster.high_seqno(0))
        assert values == {key: document.value for key, document in state.items()}
        for columns in kept:  # nor pin much more than they hold
            assert columns.value.get_total_buffer_size() < columns.value.nbytes * 2 + 4096


@pytest.mark.parametrize("base", [2**63, 2**64 - 1000])
def test_seqno_and_cas_beyond_63_bits(make_cluster: MakeCluster, base: int) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.start_vbucket_at(0, seqno=base, cas=2**63 + 2**62)
    fill(cluster, 100)
    with connected(cluster) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert drained.seqnos[0] == list(range(base + 1, base + 101))
        assert all(cas > 2**63 for _, cas, _ in drained.documents[0].values())
        assert drained.positions[0].seqno == base + 100
