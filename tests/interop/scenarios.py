"""The scenarios that every official client runs against the producer, whatever its language.

Each function takes a cluster and a way to start a driver on it. What the client holds is compared
with ``state_at``, what it counted with what there was to send.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.versions import Version
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype
from tests.interop.driver import Driver, VbucketReport
from tests.producer.tls import CERTIFICATE

NODES = 3
VBUCKETS = 12
LIVE, DELETED, EXPIRED = 500, 40, 25
WINDOW_BYTES = 64 * 1024
NOW = 1_700_000_000.0

StartDriver = Callable[..., Driver]
"""Starts a driver; ``to`` is ``now`` or ``infinity``."""


def words(cluster: ProducerCluster, seeds: Sequence[str], to: str) -> list[str]:
    """Return the options that all drivers have; those of TLS where the cluster has it."""
    given = ["--seeds", ",".join(seeds), "--to", to, "--user", "Administrator"]
    given += ["--window-bytes", str(WINDOW_BYTES)]
    return [*given, "--tls-ca", CERTIFICATE] if cluster.tls_seeds else given


def settings() -> dict[str, object]:
    """The cluster of the scenarios; its clock stands still, so that only the pager expires."""
    return {"nodes": NODES, "vbuckets": VBUCKETS, "seed": 17, "clock": lambda: NOW}


def fill(cluster: ProducerCluster) -> None:
    """Write documents of all kinds, some of which are deleted and some expire."""
    for number in range(LIVE):
        cluster.set(b"doc-%d" % number, b'{"n":%d}' % number, flags=0x02000006)
    for number in range(DELETED):
        cluster.set(b"deleted-%d" % number, b"{}")
        cluster.delete(b"deleted-%d" % number)
    for number in range(EXPIRED):
        cluster.set(b"expired-%d" % number, b"{}", expiry=int(NOW) + 10)
    assert cluster.expire_due(NOW + 11) == EXPIRED
    compressed = int(Datatype.SNAPPY)
    for key, value, datatype in (
        (b"larger than the window", b"\xff" * 3 * WINDOW_BYTES, 0),
        (b"empty", b"", 0),
        (b"compressed", deflate(b'{"again":"%s"}' % (b"and again " * 500)), compressed),
        ("schlüssel-鍵".encode(), '"größe"'.encode(), 0),
        (b"k" * 245, b"[]", 0),
    ):
        cluster.set(key, value, datatype=datatype)
    cluster.set(b"doc-0", b'{"n":0,"updated":true}', expiry=2_000_000_000)


def goals(cluster: ProducerCluster, seqnos: Mapping[int, int] | None = None) -> list[str]:
    """Name the end of every vbucket, on its newest branch; or what ``seqnos`` says instead."""
    ends = {v: cluster.high_seqno(v) for v in range(VBUCKETS)} | dict(seqnos or {})
    return [f"{v}:{cluster.failover_log(v).current_uuid:016x}:{end}" for v, end in ends.items()]


def digest_of(state: Mapping[bytes, Version]) -> str:
    """Digest documents as the drivers do: in the order of their keys, all that a client sees."""
    digest = sha256()
    for key, document in sorted(state.items()):
        digest.update(struct.pack(">I", len(key)) + key)
        digest.update(
            struct.pack(">QQII", document.cas, document.rev, document.flags, document.expiry)
        )
        digest.update(struct.pack(">I", len(document.body)) + document.body)
    return digest.hexdigest()


def assert_same_content(
    cluster: ProducerCluster,
    reports: Mapping[int, VbucketReport],
    seqnos: Mapping[int, int] | None = None,
) -> None:
    """Compare what the client holds with what there is, at ``seqnos`` or at the end."""
    for vbucket in range(VBUCKETS):
        end = (seqnos or {}).get(vbucket, cluster.high_seqno(vbucket))
        state = cluster.state_at(vbucket, end)
        told = reports[vbucket]
        assert (vbucket, told.documents, told.seqno) == (vbucket, len(state), end)
        assert (vbucket, told.digest) == (vbucket, digest_of(state))


def assert_same_failover_logs(cluster: ProducerCluster, driver: Driver) -> None:
    """Compare the failover log that each vbucket's newest stream began with."""
    told = driver.told("failover_log")
    assert set(told) == set(range(VBUCKETS))
    for vbucket in told:
        entries = [[f"{e.vb_uuid:016x}", e.seqno] for e in cluster.failover_log(vbucket).entries]
        assert told[vbucket]["entries"] == entries


def everything_to_now(cluster: ProducerCluster, start: StartDriver, *, tells_expiry: bool) -> None:
    """All there is arrives once, within the window, and the client comes to its end by itself."""
    fill(cluster)
    with start(cluster, to="now") as driver:
        reports = driver.report()
        driver.finish()
    assert_same_content(cluster, reports)
    assert_same_failover_logs(cluster, driver)
    present = sum(len(cluster.state_at(v, cluster.high_seqno(v))) for v in range(VBUCKETS))
    expired = EXPIRED if tells_expiry else 0
    assert sum(each.mutations for each in reports.values()) == present
    assert sum(each.expirations for each in reports.values()) == expired
    assert sum(each.deletions for each in reports.values()) == DELETED + EXPIRED - expired
    counters = cluster.counters()
    assert counters.buffer_acks > 0
    assert sum(counters.items_sent.values()) == present + DELETED + EXPIRED
    assert counters.dcp_connections_opened == NODES
    assert counters.connections_closed_for_errors == 0


def writes_to_open_streams_and_a_moved_vbucket(
    cluster: ProducerCluster, start: StartDriver
) -> None:
    """What is written while it streams arrives, also from the node that took a vbucket over."""
    fill(cluster)
    with start(cluster, to="infinity") as driver:
        driver.until("streaming")
        assert_same_content(cluster, driver.report_at(goals(cluster)))
        cluster.move_vbucket(0, NODES - 1)
        for number in range(100):
            cluster.set(b"doc-%d" % number, b'{"live":%d}' % number)
        cluster.delete(b"doc-499")
        assert_same_content(cluster, driver.report_at(goals(cluster)))
        driver.finish()
    assert driver.told("rollback") == {}


def write_tail(cluster: ProducerCluster) -> None:
    """Write what a failover is to lose: new documents, versions of known ones, a deletion."""
    for number in range(60):
        cluster.set(b"lost-%d" % number, b"{}")
        cluster.set(b"doc-%d" % number, b'"lost"')
    cluster.delete(b"doc-61")


def write_after_failover(cluster: ProducerCluster) -> None:
    """Write other documents than ``write_tail``."""
    for number in range(60):
        cluster.set(b"doc-%d" % (number + 100), b'"after"')


def rollback_of_a_lost_tail(cluster: ProducerCluster, start: StartDriver) -> None:
    """A failover loses what the client was told last: it rolls back there and goes on."""
    fill(cluster)
    gone = [v for v in range(VBUCKETS) if cluster.vbucket_owner(v) == 1]
    with start(cluster, to="infinity") as driver:
        driver.until("streaming")
        driver.report_at(goals(cluster))
        cluster.wait_until_replicated()
        cluster.pause_replication()
        write_tail(cluster)
        before = driver.report_at(goals(cluster))
        assert_same_content(cluster, before)

        cut = {vbucket: cluster.replica_seqno(vbucket) for vbucket in gone}
        assert all(before[vbucket].seqno > seqno for vbucket, seqno in cut.items())
        cluster.failover(1)
        write_after_failover(cluster)

        assert_same_content(cluster, driver.report_at(goals(cluster)))
        rollbacks = {v: line["seqno"] for v, line in driver.told("rollback").items()}
        assert rollbacks == cut
        assert_same_failover_logs(cluster, driver)
        driver.finish()


def rollback_after_a_crash(cluster: ProducerCluster, start: StartDriver) -> None:
    """A node comes back without its newest writes, on the same ports."""
    fill(cluster)
    with start(cluster, to="infinity") as driver:
        driver.until("streaming")
        for number in range(60):
            cluster.set(b"new-%d" % number, b"{}")
        before = driver.report_at(goals(cluster))
        cluster.crash_restart(0, lost_seqnos=2)
        cluster.set(b"after", b"{}")
        assert_same_content(cluster, driver.report_at(goals(cluster)))
        rollbacks = {v: line["seqno"] for v, line in driver.told("rollback").items()}
        crashed = [v for v in range(VBUCKETS) if cluster.vbucket_owner(v) == 0]
        assert rollbacks == {v: before[v].seqno - 2 for v in crashed}
        driver.finish()
