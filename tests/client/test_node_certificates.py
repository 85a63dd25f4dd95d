"""Certificates of nodes that end, are replaced, or name others: who goes on, and who is refused."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from time import time

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.consumer import Consumer
from dcp.client.probe import probe_cluster
from dcp.client.settings import ConsumerSettings
from dcp.errors import NodeUnavailableError
from dcp.producer.cluster import ProducerCluster
from dcp.tls_settings import TlsSettings
from tests.client.conftest import MakeCluster
from tests.client.consuming import settings, starts
from tests.client.drained import (
    CREDENTIALS,
    Drained,
    all_of,
    assert_same_state,
    caught_up,
    fill,
    wait_for,
)
from tests.producer.authority import Authority, ShownCertificate

LIFE_SECONDS = 5
"""Of a certificate that ends while a test looks: enough to connect on a busy machine."""


def consuming(cluster: ProducerCluster, chosen: ConsumerSettings) -> Consumer:
    streams = [replace(each, address=node(cluster)) for each in starts(cluster)]
    return Consumer(streams, cluster.tls_seeds, chosen, CREDENTIALS, "certified", Random(5))


def node(cluster: ProducerCluster) -> NodeAddress:
    return NodeAddress.parse(cluster.tls_seeds[0])


def refusal(cluster: ProducerCluster, ca_file: str) -> str:
    """Return why a new connection is refused."""
    chosen = settings(tls=TlsSettings(ca_file)).connection
    with pytest.raises(NodeUnavailableError) as caught:
        NodeConnection(node(cluster), chosen, CREDENTIALS, "refused").open()
    return str(caught.value)


def test_a_certificate_that_ends_ends_no_connection_and_the_next_one_says_so(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=LIFE_SECONDS)
    cluster = make_cluster(vbuckets=2, tls=authority.issue(["127.0.0.1"], ends))
    chosen = settings(tls=TlsSettings(authority.ca_file), node_deadline_seconds=3.0)
    fill(cluster, 100)
    with consuming(cluster, chosen) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        wait_for("the end", lambda: time() > ends.timestamp() + 1)
        fill(cluster, 100, prefix="later")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert cluster.counters().connections_opened == 1
        expected = re.compile(
            rf"TLS handshake with {cluster.tls_seeds[0]}: .*certificate has expired.*, found a "
            rf"certificate of 127\.0\.0\.1, good from .* to {ends:%Y-%m-%d %H:%M:%S} UTC, "
            r"expected .* good now, at .* UTC by the clock of this machine: renew what has ended"
        )
        assert expected.search(refusal(cluster, authority.ca_file))
        cluster.drop_connections()
        drained.run(consumer, lambda each: len(each.stopped) == 2)
        assert all(expected.search(each.detail) for each in drained.stopped.values())
    seeds = [f"couchbases://{cluster.https_seeds[0]}?bootstrap_on=http"]
    with pytest.raises(NodeUnavailableError, match=rf"https://.* to {ends:%Y-%m-%d %H:%M:%S}"):
        probe_cluster(seeds, chosen.connection, CREDENTIALS)


def test_a_certificate_that_is_not_good_yet_speaks_of_the_clock(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    begins = datetime.now(UTC) + timedelta(hours=5)
    cluster = make_cluster(tls=authority.issue(["127.0.0.1"], begins=begins))
    found = refusal(cluster, authority.ca_file)
    assert re.search(rf"good from {begins:%Y-%m-%d %H:%M:%S} UTC to .* or set the clock", found)


def test_a_certificate_of_other_hosts_is_named_and_so_is_ours(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    cluster = make_cluster(tls=authority.issue(["cb1.example.com", "*.cb.example.com"]))
    assert (
        "found a certificate of cb1.example.com, *.cb.example.com, expected one of '127.0.0.1': "
        "name the node as its certificate does"
    ) in refusal(cluster, authority.ca_file)


def test_an_authority_that_is_not_trusted_is_told_with_the_file_that_lacks_it(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    theirs, ours = Authority(tmp_path, "theirs"), Authority(tmp_path, "ours")
    cluster = make_cluster(tls=theirs.issue(["127.0.0.1"]))
    found = refusal(cluster, ours.ca_file)
    assert f"found a certificate by an authority that is not in '{ours.ca_file}'" in found


def test_authorities_rotate_under_a_consumer(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Nothing has to be restarted: the next connection reads the file that was replaced."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    first = old.issue(["127.0.0.1"])
    shown = ShownCertificate(cert_file=first.cert_file, key_file=first.key_file)
    cluster = make_cluster(vbuckets=2, tls=shown)
    trusted = tmp_path / "bundle.pem"
    trusted.write_bytes(Path(old.ca_file).read_bytes())
    fill(cluster, 100)
    with consuming(cluster, settings(tls=TlsSettings(str(trusted)))) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))

        def wait_until_it_says(error: str) -> None:
            drained.run(consumer, lambda _: error in consumer.stats()[0].error)

        shown.show(new.issue(["127.0.0.1"]))
        fill(cluster, 100, prefix="on the old connection")
        drained.run(consumer, caught_up(cluster))
        for content, error in ((None, "certificate verify failed"), (b"", "CA file")):
            if content is not None:  # it is being replaced, in place
                trusted.write_bytes(content)
            cluster.drop_connections()
            wait_until_it_says(error)
        trusted.write_bytes(Path(old.ca_file).read_bytes() + Path(new.ca_file).read_bytes())
        fill(cluster, 100, prefix="on a new one")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert not drained.stopped
    assert drained.rows == sum(cluster.high_seqno(vbucket) for vbucket in all_of(cluster))
