"""Bootstrap, access, and clients that break the protocol: only their own connection suffers."""

import json
from collections.abc import Callable

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.commands.session import Access
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Magic, Opcode, ServerOpcode, Status
from tests.producer.all_commands import COMMANDS
from tests.producer.raw_client import FEATURES, PLAIN_FEATURES, RawClient

Connect = Callable[..., RawClient]
MECHANISMS = [
    (b"SCRAM-SHA512", "SCRAM-SHA-512"),
    (b"SCRAM-SHA256", "SCRAM-SHA-256"),
    (b"SCRAM-SHA1", "SCRAM-SHA-1"),
]


def test_hello_grants_a_part_of_what_is_asked(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster)
    asked = (0x01, 0x02, 0x06, 0x07, 0x06, 0x0E, 0x0F, 0x10, 0x12, 0x7777)
    assert client.ok(m.Hello(b"x", asked), Opcode.HELLO) == m.HelloAnswer((0x06, 0x07, 0x10, 0x12))
    always = (HelloFeature.TCP_NODELAY, HelloFeature.SYNC_REPLICATION)
    assert client.ok(m.Hello(b"x", always), Opcode.HELLO) == m.HelloAnswer(always)
    assert client.ok(m.Hello(b"", ()), Opcode.HELLO) == m.HelloAnswer(())
    client.send(Frame(Magic.REQUEST, Opcode.HELLO, value=b"\0"))
    odd = client.answer()
    assert odd.status == Status.EINVAL
    assert "error" in json.loads(odd.value)
    needs_duplex = client.call(m.Hello(b"x", (0x0D,)), Opcode.HELLO)
    assert needs_duplex.status == Status.EINVAL


@pytest.mark.parametrize(("mechanism", "scramp_name"), MECHANISMS)
def test_scram(
    cluster: ProducerCluster, connect: Connect, mechanism: bytes, scramp_name: str
) -> None:
    client = connect(cluster)
    for user, password, status in (
        ("Administrator", "wrong", Status.AUTH_ERROR),
        ("nobody", "password", Status.AUTH_ERROR),
        ("Administrator", "password", Status.SUCCESS),
    ):
        assert client.scram(mechanism, scramp_name, user, password).status == status
    assert client.call(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET).status == Status.SUCCESS


def test_plain_and_its_refusals(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster)
    client.ok(m.Hello(b"x", (0x07,)), Opcode.HELLO)
    assert client.ok(m.Empty(), Opcode.SASL_LIST_MECHS) == m.Text(
        b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
    )
    for mechanism, payload, status in (
        (b"PLAIN", b"\0Administrator\0wrong", Status.AUTH_ERROR),
        (b"PLAIN", b"\0nobody\0", Status.AUTH_ERROR),
        (b"PLAIN", b"Administrator", Status.EINVAL),
        (b"NOSUCH", b"", Status.AUTH_ERROR),
        (b"SCRAM-SHA1", b"\xff", Status.EINVAL),
        (b"SCRAM-SHA1", b"n,,garbage", Status.EINVAL),
    ):
        answer = client.call(m.Sasl(mechanism, payload), Opcode.SASL_AUTH)
        assert answer.status == status, payload
    step = client.call(m.Sasl(b"SCRAM-SHA1", b"c=biws"), Opcode.SASL_STEP)
    assert step.status == Status.AUTH_ERROR
    client.log_in()
    again = client.call(m.Sasl(b"PLAIN", b"\0Administrator\0wrong"), Opcode.SASL_AUTH)
    assert again.status == Status.AUTH_ERROR
    assert client.call(m.KeyOnly(b"k"), Opcode.GET).status in (Status.EACCESS, Status.NO_BUCKET)


HANDSHAKE = {
    Opcode.HELLO,
    Opcode.SASL_LIST_MECHS,
    Opcode.SASL_AUTH,
    Opcode.SASL_STEP,
    Opcode.GET_ERROR_MAP,
}
REFUSED_FOR_ALL = {0xFD}  # to set the server's clock
ON_DCP_CONNECTIONS = {
    opcode for opcode, command in COMMANDS.items() if command.access == Access.DCP
}


def test_only_the_handshake_is_open_to_anybody() -> None:
    open_to_all = {opcode for opcode in COMMANDS if COMMANDS[opcode].access == Access.ANYBODY}
    assert open_to_all == HANDSHAKE | REFUSED_FOR_ALL
    assert len(ON_DCP_CONNECTIONS) > 10


def test_nothing_without_authentication(cluster: ProducerCluster, connect: Connect) -> None:
    """No command at all, and before its body is looked at: these frames have none."""
    client = connect(cluster)
    client.ok(m.Hello(b"x", (0x07,)), Opcode.HELLO)
    for opcode in COMMANDS.keys() - HANDSHAKE - REFUSED_FOR_ALL - ON_DCP_CONNECTIONS:
        client.send(Frame(Magic.REQUEST, opcode))
        answer = client.answer()
        assert (answer.opcode, answer.status) == (opcode, Status.EACCESS)
        silent = connect(cluster)  # without XERROR
        silent.send(Frame(Magic.REQUEST, opcode))
        assert silent.frames_to_the_end() == [], hex(opcode)


@pytest.mark.parametrize("features", [(), (0x07,)])
def test_dcp_messages_without_authentication(
    cluster: ProducerCluster, connect: Connect, features: tuple[int, ...]
) -> None:
    """DCP_OPEN is asked for before the user (as observed on a 7.0 server); all goes on."""
    client = connect(cluster)
    client.ok(m.Hello(b"x", features), Opcode.HELLO)
    for opcode in ON_DCP_CONNECTIONS:
        client.send(Frame(Magic.REQUEST, opcode))
        answer = client.answer()
        assert (answer.opcode, answer.status) == (opcode, Status.EINVAL)
        assert b"only be sent on a DCP connection" in answer.value
    assert client.log_in().open_dcp().request_stream(0).status == Status.SUCCESS


def test_the_handshake_in_one_segment(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster)
    client.send(
        encode(m.Hello(b"x", (0x07,)), Opcode.HELLO),
        encode(m.Sasl(b"PLAIN", b"\0Administrator\0password"), Opcode.SASL_AUTH),
        encode(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET),
        encode(m.DcpOpen(b"x", 1), Opcode.DCP_OPEN),
    )
    assert [client.answer().status for _ in range(4)] == [Status.SUCCESS] * 4


def test_buckets(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster).log_in(bucket=b"default")
    unknown = client.call(m.SelectBucket(b"other"), Opcode.SELECT_BUCKET)
    assert unknown.status == Status.EACCESS
    assert client.call(m.DcpOpen(b"x", 1), Opcode.DCP_OPEN).status == Status.NO_BUCKET
    client.ok(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET)
    assert client.ok(m.Empty(), Opcode.LIST_BUCKETS) == m.Text(b"default")


def test_small_commands(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster).log_in()
    version = client.ok(m.Empty(), Opcode.VERSION)
    assert isinstance(version, m.Text)
    assert version.value[:1].isdigit()
    manifest = client.ok(m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)
    assert isinstance(manifest, m.Text)
    assert json.loads(manifest.value)["scopes"][0]["collections"][0]["uid"] == "0"
    error_map = client.ok(m.GetErrorMap(2), Opcode.GET_ERROR_MAP)
    assert isinstance(error_map, m.Text)
    assert json.loads(error_map.value)["errors"]["7"]["attrs"] == ["fetch-config", "invalid-input"]
    path = m.GetId(b"_default._default")
    assert client.ok(path, Opcode.GET_COLLECTION_ID) == m.IdAnswer(0, 0)
    unknown = client.call(m.GetId(b"_default.other"), Opcode.GET_COLLECTION_ID)
    assert unknown.status == Status.UNKNOWN_COLLECTION
    assert client.call(m.Stat(b"nosuch"), Opcode.STAT).status == Status.KEY_ENOENT
    assert client.call(m.Unknown(), 0xEE).status == Status.UNKNOWN_COMMAND
    assert client.ok(m.Empty(), Opcode.LIST_BUCKETS) == m.Text(b"default")
    assert client.call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS
    assert client.call(m.Empty(), Opcode.QUIT).status == Status.SUCCESS
    assert client.is_closed()


def test_the_cluster_map_and_its_known_version(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster).log_in()
    answer = client.call(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    tree = json.loads(answer.value)
    assert (tree["rev"], tree["revEpoch"], tree["name"]) == (1, 1, "default")
    assert tree["vBucketServerMap"]["vBucketMap"] == [[0]]
    seeds = {"kv": cluster.seeds[0], "mgmt": cluster.http_seeds[0]}
    ports = {name: int(seed.rsplit(":", 1)[1]) for name, seed in seeds.items()}
    assert tree["nodesExt"][0]["services"] == ports
    current = client.call(m.GetClusterConfig(1, 1), Opcode.GET_CLUSTER_CONFIG)
    assert (current.status, current.value, current.datatype) == (Status.SUCCESS, b"", 0)
    older = client.call(m.GetClusterConfig(1, 0), Opcode.GET_CLUSTER_CONFIG)
    assert json.loads(older.value) == tree
    asked = (HelloFeature.GET_CLUSTER_CONFIG_WITH_GIVEN_VERSION,)
    assert client.ok(m.Hello(b"x", asked), Opcode.HELLO) == m.HelloAnswer(asked)


@pytest.mark.parametrize(
    ("asked", "told"), [(0, None), (1, (1, 13)), (2, (2, 9)), (3, (2, 9)), (0xFFFF, (2, 9))]
)
def test_error_maps_have_the_version_that_the_client_can_read(
    cluster: ProducerCluster, connect: Connect, asked: int, told: tuple[int, int] | None
) -> None:
    """As kv_engine's ``testapp_errmap.cc``: also before authentication."""
    answer = connect(cluster).call(m.GetErrorMap(asked), Opcode.GET_ERROR_MAP)
    if told is None:
        assert (answer.status, answer.value) == (Status.KEY_ENOENT, b"")
    else:
        tree = json.loads(answer.value)
        assert (answer.status, tree["version"], tree["revision"]) == (Status.SUCCESS, *told)
        assert tree["errors"]["86"]["attrs"] == ["temp", "retry-now"]


def test_the_map_without_a_bucket_is_the_clusters_and_for_administrators(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    users = {"Administrator": "password", "reader": "password"}
    cluster = make_cluster(nodes=2, users=users)
    client = connect(cluster, 1)
    client.ok(m.Hello(b"x", (HelloFeature.JSON,)), Opcode.HELLO)
    client.ok(m.Sasl(b"PLAIN", b"\0Administrator\0password"), Opcode.SASL_AUTH)
    answer = client.call(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    tree = json.loads(answer.value)
    assert (answer.status, answer.datatype) == (Status.SUCCESS, int(Datatype.JSON))
    assert set(tree) == {"rev", "revEpoch", "nodesExt"}
    current = client.call(
        m.GetClusterConfig(tree["revEpoch"], tree["rev"]), Opcode.GET_CLUSTER_CONFIG
    )
    assert (current.status, current.value, current.datatype) == (Status.SUCCESS, b"", 0)
    client.ok(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET)
    of_bucket = client.call(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    assert json.loads(of_bucket.value)["nodesExt"] == tree["nodesExt"]
    assert "vBucketServerMap" in json.loads(of_bucket.value)
    for features, closes in (((HelloFeature.XERROR,), False), ((), True)):
        reader = connect(cluster)
        reader.ok(m.Hello(b"x", features), Opcode.HELLO)
        reader.ok(m.Sasl(b"PLAIN", b"\0reader\0password"), Opcode.SASL_AUTH)
        reader.send(encode(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG))
        assert closes or reader.answer().status == Status.EACCESS
        assert not closes or reader.is_closed()


def test_seqno_commands(cluster: ProducerCluster, connect: Connect) -> None:
    cluster.set(b"k", b"1")
    uuid = cluster.failover_log(0).current_uuid
    client = connect(cluster).log_in()
    pairs = m.AllVbSeqnos(((0, 1),))
    for state, expected in ((None, pairs), (0, pairs), (1, pairs), (2, m.AllVbSeqnos(()))):
        assert client.ok(m.GetAllVbSeqnos(state), Opcode.GET_ALL_VB_SEQNOS) == expected
    assert client.call(m.GetAllVbSeqnos(9), Opcode.GET_ALL_VB_SEQNOS).status == Status.EINVAL
    assert client.ok(m.GetAllVbSeqnos(1, 0), Opcode.GET_ALL_VB_SEQNOS) == pairs
    unknown = client.call(m.GetAllVbSeqnos(1, 8), Opcode.GET_ALL_VB_SEQNOS)
    assert unknown.status == Status.UNKNOWN_COLLECTION
    observed = client.ok(m.ObserveSeqno(uuid), Opcode.OBSERVE_SEQNO)
    assert observed == m.ObserveSeqnoAnswer(0, 0, uuid, 1, 1)
    assert client.call(m.ObserveSeqno(5), Opcode.OBSERVE_SEQNO).status == Status.KEY_ENOENT
    log = client.ok(m.Empty(), Opcode.GET_FAILOVER_LOG)
    assert log == m.FailoverLogAnswer(cluster.failover_log(0).entries)
    assert connect(cluster).log_in().open_dcp().ok(m.Empty(), Opcode.DCP_GET_FAILOVER_LOG) == log
    assert client.call(m.SeqnoPersistence(1), Opcode.SEQNO_PERSISTENCE).status == Status.SUCCESS
    assert client.call(m.SeqnoPersistence(2), Opcode.SEQNO_PERSISTENCE).status == Status.ETMPFAIL


@pytest.mark.parametrize("flags", [0x02, 0x03, 0x10, 0x80, 0x49, 0x101, 0xFFFF])
def test_dcp_open_refuses_flags(cluster: ProducerCluster, connect: Connect, flags: int) -> None:
    client = connect(cluster).log_in()
    assert client.call(m.DcpOpen(b"x", flags), Opcode.DCP_OPEN).status == Status.EINVAL


def test_dcp_opens_once_per_connection_and_name(cluster: ProducerCluster, connect: Connect) -> None:
    first, second = connect(cluster).log_in(), connect(cluster).log_in()
    early = first.call(m.StreamRequest(0, 0, 1, 0, 0, 0), Opcode.DCP_STREAM_REQ)
    assert early.status == Status.EINVAL
    first.open_dcp(name=b"same")
    assert first.call(m.DcpOpen(b"more", 1), Opcode.DCP_OPEN).status == Status.EINVAL
    assert first.call(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET).status == 0x83
    second.open_dcp(name=b"same")
    assert first.is_closed()
    assert second.request_stream(0).status == Status.SUCCESS
    assert list(cluster.counters().connections) == [(0, "same")]
    too_long = connect(cluster).log_in().call(m.DcpOpen(b"x" * 201, 1), Opcode.DCP_OPEN)
    assert too_long.status == Status.EINVAL


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("enable_noop", "maybe", Status.SUCCESS),
        ("set_noop_interval", "0.100000", Status.SUCCESS),
        ("set_noop_interval", "0", Status.SUCCESS),
        ("set_noop_interval", "100000", Status.SUCCESS),
        ("set_noop_interval", "1e3", Status.SUCCESS),
        ("set_noop_interval", "abc", Status.EINVAL),
        ("set_noop_interval", "nan", Status.EINVAL),
        ("set_noop_interval", "inf", Status.EINVAL),
        ("set_noop_interval", "1e300", Status.EINVAL),
        ("set_noop_interval", "1_0", Status.EINVAL),
        ("set_noop_interval", " 1", Status.EINVAL),
        ("set_noop_interval", "1s", Status.EINVAL),
        ("set_noop_interval", "-1", Status.EINVAL),
        ("set_noop_interval", "9" * 65, Status.EINVAL),
        ("connection_buffer_size", "1_0", Status.EINVAL),
        ("connection_buffer_size", " 1", Status.EINVAL),
        ("connection_buffer_size", "+1", Status.EINVAL),
        ("connection_buffer_size", "1.0", Status.EINVAL),
        ("connection_buffer_size", "-1", Status.EINVAL),
        ("connection_buffer_size", "4294967296", Status.EINVAL),
        ("stream_buffer_size", "1", Status.SUCCESS),
        ("stream_buffer_size", "-1", Status.EINVAL),
        ("stream_buffer_size", "4294967296", Status.EINVAL),
        ("set_priority", "high", Status.SUCCESS),
        ("set_priority", "urgent", Status.EINVAL),
        ("backfill_order", "x", Status.EINVAL),
        ("supports_cursor_dropping_vulcan", "true", Status.SUCCESS),
        ("supports_hifi_MFU", "true", Status.SUCCESS),
        ("force_value_compression", "true", Status.EINVAL),
        ("include_deleted_user_xattrs", "true", Status.EINVAL),
        ("max_marker_version", "2.2", Status.NOT_SUPPORTED),
        ("max_marker_version", "2.1", Status.EINVAL),
        ("enable_stream_id", "true", Status.SUCCESS),
        ("enable_stream_id", "yes", Status.EINVAL),
        ("enable_sync_writes", "false", Status.EINVAL),
        ("v7_dcp_status_codes", "true", Status.SUCCESS),
        ("v7_dcp_status_codes", "1", Status.EINVAL),
        ("flatbuffers_system_events", "true", Status.NOT_SUPPORTED),
        ("include_deleted_user_xattrs", "false", Status.EINVAL),
        ("no_such_key", "true", Status.EINVAL),
        ("enable_noop", "", Status.EINVAL),
    ],
)
def test_controls(
    cluster: ProducerCluster, connect: Connect, name: str, value: str, status: Status
) -> None:
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp()
    answer = dcp.call(m.DcpControl(name.encode(), value.encode()), Opcode.DCP_CONTROL)
    assert answer.status == status


BAD_WINDOWS = ("", "-1", "4294967296", "1e3", "+5", "\u0663", "9" * 500)


@pytest.mark.parametrize("value", BAD_WINDOWS)
@pytest.mark.parametrize("name", ["connection_buffer_size", "stream_buffer_size"])
@pytest.mark.parametrize("rules", ["document", "server"])
def test_a_window_is_refused_with_a_reason(
    make_cluster: Callable[..., ProducerCluster],
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    rules: str,
    name: str,
    value: str,
) -> None:
    """The recorded server gives none to the client; the log has it under both rules."""
    cluster = make_cluster(vbuckets=1, rules=rules)
    dcp = connect(cluster).log_in().open_dcp(name=b"wide")
    refused = dcp.call(m.DcpControl(name.encode(), value.encode()), Opcode.DCP_CONTROL)
    expected = "expected a decimal number of bytes from 0 to 4294967295"
    fault = f"{name}: found {value[:40]!r}, {expected}"
    if rules == "document":
        assert refused.status == Status.EINVAL
        assert json.loads(refused.value)["error"]["context"] == fault
    else:
        assert refused.value == b""
    is_unknown = rules == "server" and name == "stream_buffer_size" and value.isascii() and value
    assert refused.status == (Status.NOT_SUPPORTED if is_unknown else Status.EINVAL)
    told = [] if is_unknown else [f"eq_dcpq:wide: a window is refused: {fault}"]
    logged = [
        r.getMessage() for r in caplog.records if r.name == "dcp.server.commands.dcp_commands"
    ]
    assert logged == told


def test_only_true_turns_noops_on(cluster: ProducerCluster, connect: Connect) -> None:
    dcp = connect(cluster).log_in().open_dcp(enable_noop="TRUE")
    assert dcp.request_stream(0).status == Status.NOT_SUPPORTED
    dcp.ok(m.DcpControl(b"enable_noop", b"true"), Opcode.DCP_CONTROL)
    assert dcp.request_stream(0).status == Status.SUCCESS


def test_malformed_bodies_are_answered(cluster: ProducerCluster, connect: Connect) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    for frame in (
        Frame(Magic.REQUEST, Opcode.DCP_STREAM_REQ, extras=b"x" * 40),
        Frame(Magic.REQUEST, Opcode.DCP_STREAM_REQ, extras=b"x" * 48, key=b"k"),
        Frame(Magic.REQUEST, Opcode.DCP_BUFFER_ACK, extras=b"xx"),
        Frame(Magic.REQUEST, Opcode.GET, value=b"x", key=b"\0k"),
    ):
        dcp.send(frame)
        answer = dcp.answer()
        assert (answer.opcode, answer.status) == (frame.opcode, Status.EINVAL)
    dcp.ack(0)
    assert dcp.is_quiet()


@pytest.mark.parametrize(
    "frame",
    [
        encode(m.Empty(), Opcode.DCP_NOOP),
        encode(m.Empty(), Opcode.DCP_NOOP, magic=Magic.RESPONSE, opaque=7),
        Frame(Magic.ALT_REQUEST, Opcode.NOOP, framing_extras=b"\x00"),
        Frame(Magic.SERVER_REQUEST, 1),
    ],
)
def test_breaking_the_protocol_closes(
    cluster: ProducerCluster, connect: Connect, frame: Frame
) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    dcp.send(frame)
    assert dcp.is_closed()


def test_answers_to_a_server_are_taken(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster).log_in()
    client.send(Frame(Magic.SERVER_RESPONSE, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION))
    assert client.call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS


def test_map_changes_are_pushed_to_who_asked(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=4)
    features = (HelloFeature.DUPLEX, HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION)
    told, other = connect(cluster).log_in(features), connect(cluster).log_in()
    cluster.move_vbucket(0, 1)
    push = told.next_frame()
    assert push.magic is Magic.SERVER_REQUEST
    body = decode(push)
    assert isinstance(body, m.ClustermapNotification)
    assert (body.bucket, body.epoch, body.rev) == (b"default", 1, 2)
    assert json.loads(body.config)["vBucketServerMap"]["vBucketMap"] == [[1], [0], [1], [1]]
    assert other.is_quiet()


def test_brief_notifications_name_the_revision_and_leave_the_map_to_be_asked_for(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=4)
    features = (
        HelloFeature.DUPLEX,
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION,
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
    )
    client = connect(cluster)
    granted = client.ok(m.Hello(b"x", features), Opcode.HELLO)
    assert granted == m.HelloAnswer((HelloFeature.DUPLEX, features[2]))
    assert client.call(m.Hello(b"x", features[2:]), Opcode.HELLO).status == Status.EINVAL
    client.log_in(features)
    cluster.move_vbucket(0, 1)
    push = client.next_frame()
    assert (push.magic, push.datatype) == (Magic.SERVER_REQUEST, 0)
    assert decode(push) == m.ClustermapNotification(b"default", b"", 1, 2)
    newer = client.call(m.GetClusterConfig(1, 1), Opcode.GET_CLUSTER_CONFIG)
    assert json.loads(newer.value)["rev"] == 2


@pytest.mark.parametrize("once", [True, False])
def test_the_map_in_refusals_may_be_wanted_once(
    make_cluster: Callable[..., ProducerCluster], connect: Connect, once: bool
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=4)
    wanted = (HelloFeature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,) if once else ()
    client = connect(cluster).log_in((*FEATURES, *wanted))

    def refused() -> list[int | None]:
        """The revisions that two refusals name."""
        answers = [client.call(m.Empty(), Opcode.GET_FAILOVER_LOG, vbucket=3) for _ in range(2)]
        assert {answer.status for answer in answers} == {Status.NOT_MY_VBUCKET}
        assert all(bool(answer.datatype) is bool(answer.value) for answer in answers)
        return [json.loads(answer.value)["rev"] if answer.value else None for answer in answers]

    assert refused() == [1, None if once else 1]
    cluster.move_vbucket(0, 1)
    assert refused() == [2, None if once else 2]
    client.ok(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET)
    assert refused() == [2, None if once else 2]
    cluster.move_vbucket(0, 0)
    client.ok(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    assert refused() == [None if once else 3] * 2
