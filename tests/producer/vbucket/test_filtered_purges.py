"""Streams that leave out the collections whose deletions were purged: they miss nothing by it."""

from collections.abc import Callable

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.resume_rules import Rules, VbucketFacts, judge
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.vocabulary import Status
from tests.producer.one_vbucket import flush
from tests.producer.raw_client import PLAIN_FEATURES, RawClient
from tests.producer.resuming import resuming

MakeCluster = Callable[..., ProducerCluster]
Connect = Callable[..., RawClient]
LOG = FailoverLog((FailoverEntry(0xABC, 0),))


def _filled(cluster: ProducerCluster) -> None:
    """The default collection ends at 3; the other begins at 4, 10 to 14 are purged deletions."""
    for key in range(3):
        cluster.set(b"k%d" % key, b"{}")
    cluster.create_collection("_default", "other")
    for key in range(5):
        cluster.set(b"o%d" % key, b"{}", collection="_default.other")
    for key in range(5):
        cluster.delete(b"o%d" % key, collection="_default.other")
    cluster.set(b"last", b"{}", collection="_default.other")
    flush(cluster)
    assert (cluster.purge_tombstones(0), cluster.high_seqno(0)) == (5, 15)
    checkpoints = cluster.bucket.vbuckets[0].data.checkpoints
    checkpoints.remove_closed()
    checkpoints.expel()


@pytest.mark.parametrize("rules", ["document", "server"])
@pytest.mark.parametrize("knows_collections", [True, False])
def test_who_has_all_of_its_filter_goes_on(
    make_cluster: MakeCluster, connect: Connect, rules: Rules, knows_collections: bool
) -> None:
    cluster = make_cluster(vbuckets=1, rules=rules)
    _filled(cluster)
    uuid = cluster.failover_log(0).current_uuid
    client = connect(cluster)
    client = client.log_in() if knows_collections else client.log_in(PLAIN_FEATURES)
    value = b'{"collections":["0"]}' if knows_collections else b""
    dcp = client.open_dcp()
    for start, status in ((2, Status.ROLLBACK), (3, Status.SUCCESS)):
        assert dcp.request_stream(0, start, vb_uuid=uuid, value=value).status == status
    cluster.set(b"new", b"{}")
    told = dcp.messages_to(16)
    assert not [each for each in told if isinstance(each, m.StreamEnd)]


@pytest.mark.parametrize(
    ("learned", "start", "status"),
    [(0, 5, Status.SUCCESS), (30, 5, Status.ROLLBACK), (30, 30, Status.SUCCESS)],
)
@pytest.mark.parametrize("rules", ["document", "server"])
def test_of_what_nobody_knows_the_collection_all_may_be_missed(
    learned: int, start: int, status: Status, rules: Rules
) -> None:
    """A replica never saw deletions that had gone from its active: whose they were it cannot say.

    As far as it knows the collection ends at 5.
    """
    facts = VbucketFacts(LOG, 40, 30, collections_high_seqno=5, learned_purge_seqno=learned)
    request = resuming(start, 0xABC, start, start)
    assert judge(request, facts, rules).status == status
