"""The bootstrap against a scripted server: what is said, in which order, and what refusals mean."""

import json
from collections.abc import Callable

import pytest

from dcp import __version__
from dcp.errors import (
    AuthenticationError,
    BucketError,
    ConfigError,
    DcplakeError,
    LocalProtocolError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol import events as e
from dcp.protocol.bootstrap import (
    METADATA_OPEN_FLAGS,
    OPTIONAL_CONTROLS,
    BootstrapSettings,
    listed_control,
)
from dcp.protocol.credentials import ALL_MECHANISMS, PLAIN, Credentials, Secret
from dcp.protocol.negotiation import CHANGE_STREAMS, FEATURES
from dcp.protocol.position import Position
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, OpenFlag, Status
from tests.protocol.scripted import (
    ALL_FEATURES,
    PASSWORD,
    Answerer,
    ScriptedServer,
    answer_to,
    block_of,
    converse,
    new_connection,
)

WHOLE_BOOTSTRAP = [
    Opcode.HELLO,
    Opcode.SASL_LIST_MECHS,
    Opcode.SASL_AUTH,
    Opcode.SASL_STEP,
    Opcode.SELECT_BUCKET,
    Opcode.GET_CLUSTER_CONFIG,
    Opcode.VERSION,
    Opcode.DCP_OPEN,
    *[Opcode.DCP_CONTROL] * 8,
]


def bootstrap(server: ScriptedServer, **options: object) -> list[e.Event]:
    connection = new_connection(**options)  # type: ignore[arg-type]
    connection.start(0.0)
    return converse(connection, server)


def opcodes(server: ScriptedServer) -> list[int]:
    return [frame.opcode for frame, _ in server.seen]


def refusing(status: int, text: bytes = b"") -> Answerer:
    return lambda frame, _: answer_to(frame, m.Refusal(text), status)


def test_the_whole_bootstrap() -> None:
    server = ScriptedServer()
    (ready,) = bootstrap(server)
    assert opcodes(server) == WHOLE_BOOTSTRAP
    assert ready == e.Ready(frozenset(FEATURES), b'{"rev":1}')
    bodies = {type(body): body for _, body in server.seen}
    hello = bodies[m.Hello]
    assert isinstance(hello, m.Hello)
    assert json.loads(hello.agent) == {"a": f"dcplake/{__version__}", "i": "test-connection"}
    assert bodies[m.SelectBucket] == m.SelectBucket(b"travel")
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
    assert bodies[m.DcpOpen] == m.DcpOpen(b"test-connection", flags)
    controls = [(b.name, b.value) for _, b in server.seen if isinstance(b, m.DcpControl)]
    assert controls == [
        (b"enable_noop", b"true"),
        (b"set_noop_interval", b"20"),
        (b"connection_buffer_size", b"10000"),
        (b"enable_expiry_opcode", b"true"),
        (b"supports_cursor_dropping_vulcan", b"true"),
        (b"send_stream_end_on_client_close_stream", b"true"),
        (b"max_marker_version", b"2.2"),
        (b"backfill_order", b"sequential"),
    ]


def test_servers_keep_the_end_of_a_connections_name() -> None:
    server = ScriptedServer()
    name = "dcplake-0a1b2c3d-r7-t2.0:travel:a-long-host-name:4242:17-9f3c21ab"
    bootstrap(server, settings=BootstrapSettings("travel", name))
    hello = server.seen[0][1]
    assert isinstance(hello, m.Hello)
    kept = json.loads(hello.agent)["i"]
    assert name.endswith(kept)
    assert len(kept) == 33


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_server_that_does_not_grant_a_feature_is_handled(feature: HelloFeature) -> None:
    server = ScriptedServer(granted=ALL_FEATURES - {feature})
    (ready,) = bootstrap(server)
    assert isinstance(ready, e.Ready)
    assert feature not in ready.features
    assert (Opcode.SELECT_BUCKET in opcodes(server)) == (feature != HelloFeature.SELECT_BUCKET)
    opened = next(body for _, body in server.seen if isinstance(body, m.DcpOpen))
    wants_xattrs = bool(opened.flags & OpenFlag.INCLUDE_XATTRS)
    assert wants_xattrs == (feature != HelloFeature.XATTR)


def test_plain_is_one_message_where_it_is_allowed() -> None:
    server = ScriptedServer(mechanisms=b"PLAIN")
    bootstrap(server, mechanisms=ALL_MECHANISMS)
    assert Opcode.SASL_STEP not in opcodes(server)


def test_without_a_window_no_buffer_size_is_sent() -> None:
    server = ScriptedServer()
    bootstrap(server, window_bytes=0)
    assert b"connection_buffer_size" not in server.names_of(Opcode.DCP_CONTROL)


def test_without_dcp_the_bootstrap_ends_with_the_map() -> None:
    server = ScriptedServer()
    bootstrap(server, settings=BootstrapSettings("travel", "probe", open_dcp=False))
    assert opcodes(server) == WHOLE_BOOTSTRAP[:6]


def test_optional_controls_may_be_refused() -> None:
    server = ScriptedServer(refused_controls=frozenset({b"enable_expiry_opcode"}))
    (ready,) = bootstrap(server)
    assert isinstance(ready, e.Ready)
    assert ready.refused_controls == ("enable_expiry_opcode",)


@pytest.mark.parametrize(
    ("version", "unasked"),
    [
        (b"6.5.1-6299", {b"max_marker_version", b"backfill_order", b"change_streams"}),
        (b"7.0.5-7659", {b"max_marker_version", b"change_streams"}),
        (b"7.1.6-3955", {b"max_marker_version", b"change_streams"}),
        (b"7.2.0-5325", {b"max_marker_version"}),
        (b"7.10.0-1", {b"max_marker_version"}),
        (b"7.6.12-5184", {b"max_marker_version"}),
        (b"8.0.0-3777", set()),
        (b"10.0.0-1000", set()),
        (b"0.0.0-0000", set()),  # a development build
        (b"", set()),
        (b"9" * 5000 + b".0", set()),
        (b"7." + b"9" * 5000, set()),
        (None, set()),
    ],
)
def test_controls_are_asked_of_servers_that_know_them(
    version: bytes | None, unasked: set[bytes]
) -> None:
    server = ScriptedServer()
    if version is None:
        server.overrides[Opcode.VERSION] = refusing(Status.UNKNOWN_COMMAND)
    else:
        server.overrides[Opcode.VERSION] = lambda frame, _: answer_to(frame, m.Text(version))
    asked = (*OPTIONAL_CONTROLS, listed_control(CHANGE_STREAMS, "true"))
    (ready,) = bootstrap(server, settings=BootstrapSettings("travel", "a-lake", controls=asked))
    assert isinstance(ready, e.Ready)
    all_controls = {step.name.split()[1].partition("=")[0].encode() for step in asked}
    assert all_controls - set(server.names_of(Opcode.DCP_CONTROL)) == unasked


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        (b"6.0.5-3340", OpenFlag.NO_VALUE),
        (b"7.2.9-9999", OpenFlag.NO_VALUE),
        (b"7.6.0-2176", OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE),
        (b"8.0.1-3994", OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE),
        (b"0.0.0-0000", OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE),  # a development build
    ],
)
def test_keys_are_asked_for_by_the_flag_that_the_server_answers_rightly(
    version: bytes, flag: OpenFlag
) -> None:
    server = ScriptedServer()
    server.overrides[Opcode.VERSION] = lambda frame, _: answer_to(frame, m.Text(version))
    chosen = BootstrapSettings("travel", "a-lake", open_flags=METADATA_OPEN_FLAGS)
    (ready,) = bootstrap(server, settings=chosen)
    assert isinstance(ready, e.Ready)
    (opened,) = [body for _, body in server.seen if isinstance(body, m.DcpOpen)]
    assert opened.flags == OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES | flag


@pytest.mark.parametrize("status", [Status.NOT_SUPPORTED, Status.EINVAL])
def test_windows_of_streams_may_be_refused(status: Status) -> None:
    server = ScriptedServer()
    told: list[bytes] = []

    def answer(frame: Frame, body: m.Body) -> Frame:
        assert isinstance(body, m.DcpControl)
        told.append(body.name + b"=" + body.value)
        is_refused = body.name == b"stream_buffer_size"
        return answer_to(frame, status=status if is_refused else Status.SUCCESS)

    server.overrides[Opcode.DCP_CONTROL] = answer
    (ready,) = bootstrap(server, stream_window_bytes=5000)
    assert told[2:4] == [b"connection_buffer_size=10000", b"stream_buffer_size=5000"]
    assert isinstance(ready, e.Ready)
    assert ready.refused_controls == ("stream_buffer_size",)


@pytest.mark.parametrize("name", [b"enable_noop", b"connection_buffer_size"])
def test_required_controls_may_not(name: bytes) -> None:
    with pytest.raises(SourceError, match=f"DCP_CONTROL {name.decode()}=.*0x04 EINVAL"):
        bootstrap(ScriptedServer(refused_controls=frozenset({name})))


def test_no_cluster_map_is_no_failure() -> None:
    server = ScriptedServer()
    server.overrides[Opcode.GET_CLUSTER_CONFIG] = refusing(Status.KEY_ENOENT)
    (ready,) = bootstrap(server)
    assert isinstance(ready, e.Ready)
    assert ready.cluster_config == b""


@pytest.mark.parametrize(
    ("opcode", "status", "kind"),
    [
        (Opcode.SASL_AUTH, Status.AUTH_ERROR, AuthenticationError),
        (Opcode.SASL_AUTH, Status.EINVAL, AuthenticationError),
        (Opcode.SASL_AUTH, Status.AUTH_STALE, AuthenticationError),
        (Opcode.SASL_STEP, Status.AUTH_ERROR, AuthenticationError),
        (Opcode.SELECT_BUCKET, Status.KEY_ENOENT, BucketError),
        (Opcode.SELECT_BUCKET, Status.EACCESS, BucketError),
        (Opcode.SELECT_BUCKET, Status.NOT_SUPPORTED, BucketError),
        (Opcode.SELECT_BUCKET, Status.ETMPFAIL, NodeUnavailableError),
        (Opcode.DCP_OPEN, Status.EACCESS, BucketError),
        (Opcode.DCP_OPEN, Status.NO_BUCKET, BucketError),
        (Opcode.DCP_OPEN, Status.ETMPFAIL, NodeUnavailableError),
        (Opcode.DCP_OPEN, Status.EINVAL, SourceError),
        (Opcode.DCP_OPEN, 0x7777, SourceError),
        (Opcode.HELLO, Status.EINVAL, SourceError),
        (Opcode.HELLO, Status.NOT_INITIALIZED, NodeUnavailableError),
    ],
)
def test_each_refusal_is_a_typed_error(
    opcode: Opcode, status: int, kind: type[DcplakeError]
) -> None:
    server = ScriptedServer()
    server.overrides[opcode] = refusing(status, b'{"error":{"context":"because"}}')
    with pytest.raises(SourceError, match="because") as caught:
        bootstrap(server)
    assert type(caught.value) is kind
    assert f"{status:#04x}" in str(caught.value)
    assert opcode.name in str(caught.value)


def test_a_wrong_password_is_an_authentication_error_without_the_password() -> None:
    with pytest.raises(AuthenticationError, match="AUTH_ERROR") as caught:
        bootstrap(ScriptedServer(), password="a wrong one")
    assert "a wrong one" not in str(caught.value)


def test_a_feature_that_nobody_asked_for_breaks_the_protocol() -> None:
    server = ScriptedServer()
    server.overrides[Opcode.HELLO] = lambda frame, _: answer_to(frame, m.HelloAnswer((0x7777,)))
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        bootstrap(server)


def test_an_answer_to_something_else_breaks_the_protocol() -> None:
    server = ScriptedServer()

    def wrong(frame: Frame, _: m.Body) -> Frame:
        return answer_to(Frame(frame.magic, Opcode.VERSION, opaque=frame.opaque), m.Text(b"7.6"))

    server.overrides[Opcode.SELECT_BUCKET] = wrong
    with pytest.raises(RemoteProtocolError, match="expected SELECT_BUCKET"):
        bootstrap(server)


def test_an_answer_with_another_opaque_breaks_the_protocol() -> None:
    connection = new_connection()
    connection.start(0.0)
    stray = answer_to(Frame(Magic.REQUEST, Opcode.HELLO, opaque=0xBAD), m.HelloAnswer(()))
    with pytest.raises(RemoteProtocolError, match="opaque 0xbad"):
        connection.receive(block_of(stray), 0.0)


@pytest.mark.parametrize(
    ("silent", "granted", "kind"),
    [
        (Opcode.SELECT_BUCKET, ALL_FEATURES - {HelloFeature.XERROR}, BucketError),
        (Opcode.DCP_OPEN, ALL_FEATURES - {HelloFeature.XERROR}, BucketError),
        (Opcode.DCP_OPEN, ALL_FEATURES, NodeUnavailableError),
        (Opcode.SASL_AUTH, ALL_FEATURES - {HelloFeature.XERROR}, NodeUnavailableError),
    ],
)
def test_closing_is_how_a_server_without_xerror_refuses(
    silent: Opcode, granted: frozenset[int], kind: type[SourceError]
) -> None:
    server = ScriptedServer(granted=granted)
    server.overrides[silent] = lambda _frame, _body: None
    connection = new_connection()
    connection.start(0.0)
    converse(connection, server)
    error = connection.lost()
    assert type(error) is kind
    assert silent.name in str(error)


def test_commands_before_ready_are_our_mistake() -> None:
    connection = new_connection()
    connection.start(0.0)
    commands: tuple[Callable[[], object], ...] = (
        lambda: connection.open_stream(1, Position.beginning(), failover_log=None),
        lambda: connection.close_stream(1),
        connection.request_seqnos,
        connection.request_cluster_config,
        lambda: connection.request_failover_log(1),
        lambda: connection.start(1.0),
    )
    for command in commands:
        with pytest.raises(LocalProtocolError, match=r"not ready|started already"):
            command()


def test_a_secret_does_not_show() -> None:
    credentials = Credentials("reader", Secret(PASSWORD), (PLAIN,))
    shown = f"{credentials!r} {credentials} {credentials.password}"
    assert PASSWORD not in shown
    assert "***" in shown
    assert PASSWORD not in repr(m.Sasl(b"PLAIN", f"\0reader\0{PASSWORD}".encode()))


@pytest.mark.parametrize("mechanisms", [(), ("CRAM-MD5",)])
def test_unknown_mechanisms_are_refused(mechanisms: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="mechanisms"):
        Credentials("reader", Secret(PASSWORD), mechanisms)


@pytest.mark.parametrize("name", ["", "n" * 201])
def test_connection_names_have_a_limit(name: str) -> None:
    with pytest.raises(ConfigError, match="connection_name"):
        BootstrapSettings("travel", name)
