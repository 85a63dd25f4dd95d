"""Servers that lack something we ask for: replicated all the same, or refused by its name."""

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.errors import SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.manifest_changes import CreateCollection
from dcp.protocol.events import Ready
from dcp.protocol.negotiation import (
    ALWAYS,
    CONTROL_TERMS,
    FEATURE_TERMS,
    refused_controls,
    refused_features,
)
from dcp.server.commands import setup_commands
from dcp.server.commands.controls import CONTROLS
from dcp.server.commands.login import Login
from dcp.wire.vocabulary import Datatype, HelloFeature, Status
from dcp.wire.xattr import join_xattrs
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected
from tests.client.consuming import consuming, settings
from tests.client.drained import CREDENTIALS, Drained, assert_same_state, caught_up, fill

FEATURES = [term.feature for term in FEATURE_TERMS]
NEEDS_DUPLEX = HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION
CHOSEN = settings(stream_window_bytes=20_000, change_streams=True)
"""All that can be asked for."""
OPTIONAL = [name for name, term in CONTROL_TERMS.items() if not term.is_required]
REQUIRED = [
    name for name, term in CONTROL_TERMS.items() if term.is_required and term.asked == ALWAYS
]


def follow_a_move(cluster: ProducerCluster) -> Ready:
    """Replicate what there is, and what comes after a vbucket has moved; return what was agreed."""
    fill(cluster, 100)
    cluster.delete(b"key-7")
    with consuming(cluster, chosen=CHOSEN) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        owner = cluster.vbucket_owner(0)
        cluster.move_vbucket(0, 1 - owner)
        fill(cluster, 100, prefix="later")
        drained.run(consumer, caught_up(cluster))
    assert_same_state(cluster, drained)
    address = NodeAddress.parse(cluster.seeds[0])
    connection = NodeConnection(address, CHOSEN.connection, CREDENTIALS, "agreed")
    try:
        return connection.open()
    finally:
        connection.close()


def select_the_bucket_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As servers did that had one bucket for each user."""
    authenticated = Login.authenticated

    def with_bucket(login: Login, user: str) -> None:
        authenticated(login, user)
        login.select_bucket(is_there=True)

    monkeypatch.setattr(Login, "authenticated", with_bucket)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_without_a_feature(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, feature: HelloFeature
) -> None:
    gone = {feature, NEEDS_DUPLEX} if feature is HelloFeature.DUPLEX else {feature}
    monkeypatch.setattr(setup_commands, "GRANTED", setup_commands.GRANTED - gone)
    if feature is HelloFeature.SELECT_BUCKET:
        select_the_bucket_of_the_user(monkeypatch)
    ready = follow_a_move(make_cluster(nodes=2))
    assert refused_features(ready.features).keys() == {each.name for each in gone}


def test_without_collections_only_the_default_one_comes(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.change_manifest(CreateCollection("_default", "other"))
    cluster.set(b"elsewhere", b"1", collection="_default.other")
    cluster.set(b"here", b"1")
    lost = setup_commands.GRANTED - {HelloFeature.COLLECTIONS}
    monkeypatch.setattr(setup_commands, "GRANTED", lost)
    with connected(cluster) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster))
    assert drained.documents[0].keys() == {b"here"}


def test_without_xattrs_the_document_comes_alone(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.set(b"k", join_xattrs([(b"a", b"1")], b"{}"), datatype=int(Datatype.XATTR))
    lost = setup_commands.GRANTED - {HelloFeature.XATTR}
    monkeypatch.setattr(setup_commands, "GRANTED", lost)
    with connected(cluster) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster))
    assert drained.documents[0][b"k"][2] == b"{}"


def refuse_control(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As a server answers that has never heard of it."""
    monkeypatch.setitem(CONTROLS, name.encode(), lambda _dcp, _value: Status.EINVAL)


@pytest.mark.parametrize("name", OPTIONAL)
def test_without_a_control(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    refuse_control(monkeypatch, name)
    ready = follow_a_move(make_cluster(nodes=2, history_retention_bytes=1 << 20))
    assert ready.refused_controls == (name,)
    assert refused_controls(ready.refused_controls) == {name: CONTROL_TERMS[name].lost}


@pytest.mark.parametrize("name", [*REQUIRED, "connection_buffer_size"])
def test_without_a_required_control_the_server_is_refused(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    refuse_control(monkeypatch, name)
    cluster = make_cluster()
    with (
        pytest.raises(SourceError, match=f"DCP_CONTROL {name}=.*0x04 EINVAL"),
        connected(cluster),
    ):
        pass
