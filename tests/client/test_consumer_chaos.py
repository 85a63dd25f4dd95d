"""The consumer under random faults, all at once: the state stays exact."""

from random import Random

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.faults import Corruption
from tests.client.conftest import MakeCluster
from tests.client.consuming import consuming, settings
from tests.client.drained import Drained, assert_same_state, caught_up
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(4))
def test_chaos(make_cluster: MakeCluster, seed: int) -> None:
    """Random writes, drops, cuts, corruption, moves and slow releases: the state stays exact."""
    print(f"seed {seed}")
    random = Random(seed)
    cluster = make_cluster(nodes=2, seed=seed, checkpoint_items=50)
    chosen = settings(window_bytes=20_000, read_buffer_bytes=4096)
    drained = Drained()
    with consuming(cluster, chosen=chosen) as consumer:
        for step in range(40):
            with cluster.batch():
                for _ in range(random.randrange(60)):
                    key = b"key-%d" % random.randrange(200)
                    if random.random() < 0.2 and key in _live(cluster, key):
                        cluster.delete(key)
                    else:
                        cluster.set(key, b'{"s":%d}' % step * random.randrange(1, 20))
            match random.randrange(6):
                case 0:
                    cluster.drop_connections(random.randrange(2))
                case 1:
                    cluster.snapshot_cut_after(random.randrange(1, 50))
                case 2:
                    cluster.corrupt(random.choice([Corruption.BAD_MAGIC, Corruption.DUPLICATE]))
                case 3:
                    cluster.move_vbucket(random.randrange(8), random.randrange(2))
            for _ in range(random.randrange(8)):
                delivery = consumer.next(0.01)
                if delivery is not None:
                    drained.take(delivery)
            if random.random() < 0.7:
                drained.release_all()
        drained.release_all()
        cluster.faults.clear()
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert not drained.stopped


def _live(cluster: ProducerCluster, key: bytes) -> dict[bytes, object]:
    vbucket = cluster.vbucket_of(key)
    return dict(cluster.state_at(vbucket, cluster.high_seqno(vbucket)))
