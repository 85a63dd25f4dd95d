"""Batches of a DCP connection: how much of how many streams goes out at once."""

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.producer.dcp_session import DcpSession

STREAMS = 4
BATCH_BYTES = 16 * 1024
LITTLE_BYTES = BATCH_BYTES // 8


def test_a_batch_that_is_nearly_full_asks_no_other_stream() -> None:
    """One that is not is filled up: of many streams with little each goes out much at once."""
    cluster = ProducerCluster(ClusterSettings(vbuckets=STREAMS))
    with cluster.batch():
        for number in range(STREAMS * 100):
            cluster.set(b"%d" % number, b"x" * 1000)
    session = DcpSession(cluster)
    for vbucket in range(STREAMS):
        session.request_stream(vbucket, opaque=vbucket + 1)
    batches: list[list[int]] = []
    while parts := [len(each) for each in session.dcp.next_frames(BATCH_BYTES) if each]:
        batches.append(parts)

    assert all(sum(parts[:-1]) < BATCH_BYTES - LITTLE_BYTES for parts in batches)
    full = [parts for parts in batches if sum(parts) >= BATCH_BYTES - LITTLE_BYTES]
    assert len(full) >= len(batches) - 1
    assert len([parts for parts in full if len(parts) == 1]) > len(batches) // 2
