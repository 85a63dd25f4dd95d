"""Sets up a connection until it can open streams: a table of steps, one request at a time.

The official clients use the same order. Source: kv_engine ``docs/BinaryProtocol.md``,
``docs/dcp/documentation/commands/control.md``.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dcp import __version__
from dcp.errors import (
    AuthenticationError,
    BucketError,
    ConfigError,
    NodeUnavailableError,
    NoRelayError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol.credentials import Credentials
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.negotiation import (
    CONTROL_TERMS,
    FEATURES,
    GROUP_TAG,
    MAKES_UP_METADATA,
    STREAM_END_ON_CLOSE,
    STREAM_WINDOW,
    Release,
)
from dcp.protocol.refusals import (
    PORT_CURE,
    bucket_cure,
    describe_refusal,
    login_cure,
    privilege_cure,
)
from dcp.protocol.sasl import SaslExchange, choose_mechanism
from dcp.protocol.window_policies import FlowSettings
from dcp.protocol.window_resize import CONNECTION_WINDOW
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import MAX_CONNECTION_NAME_BYTES, HelloFeature, Opcode, OpenFlag, Status

OPEN_FLAGS: Final = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
METADATA_OPEN_FLAGS: Final = (
    OpenFlag.PRODUCER | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE | OpenFlag.INCLUDE_DELETE_TIMES
)
"""For streams of keys, seqnos and CAS, without values and xattrs.

Servers older than `MAKES_UP_METADATA` get NO_VALUE instead."""


_KEYS_AND_DATATYPES: Final = OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
_CONNECTION_ID_BYTES: Final = 33
"""kv_engine ``daemon/connection.h``, MaxSavedConnectionId. Of the agent it keeps 32 bytes."""


def agent_text(product: str, connection_name: str) -> str:
    """Return the key of HELLO: JSON that servers show in logs and statistics."""
    # The end of a connection's name is the part that differs between connections.
    known_as = {"a": f"{product}/{__version__}", "i": connection_name[-_CONNECTION_ID_BYTES:]}
    return json.dumps(known_as)


@dataclass(frozen=True, slots=True)
class BootstrapStep:
    """One request and the meaning of its answers."""

    name: str
    opcode: Opcode
    request: Callable[["Bootstrap"], m.Body]
    understand: Callable[["Bootstrap", m.Body, int], "Bootstrap"]
    refusals: Mapping[int, type[SourceError]] = field(default_factory=dict)
    """The error for each status that refuses this step."""
    applies: Callable[["Bootstrap"], bool] = lambda _: True
    continues: bool = False
    """True if status AUTH_CONTINUE is a success."""
    refused: Callable[["Bootstrap"], "Bootstrap"] | None = None
    """Returns the results after a refusal of an optional step; None: the step is required."""

    def answer(self, bootstrap: "Bootstrap", frame: Frame) -> "Bootstrap":
        """Return the set-up with the results of the answer ``frame``.

        Raises a SourceError for a refusal of a required step. Raises RemoteProtocolError for an
        answer to another request, or a malformed one.
        """
        if frame.opcode != self.opcode:
            raise RemoteProtocolError(
                f"{self.name}: found an answer to opcode {frame.opcode:#04x}, "
                f"expected one to {self.opcode:#04x}"
            )
        body = decode(frame)
        good = frame.status == Status.SUCCESS
        if good or (self.continues and frame.status == Status.AUTH_CONTINUE):
            return self.understand(bootstrap, body, frame.status)
        if self.refused is not None and frame.status in _OPTIONAL_REFUSALS:
            return self.refused(bootstrap)
        kind = self.refusals.get(frame.status) or _ANY_REFUSAL.get(frame.status, SourceError)
        cure = privilege_cure(frame.value) or _cure(kind, bootstrap)
        raise kind(f"{self.name}: found {describe_refusal(frame)}, {cure}")


_NO_RELAY: Final[dict[int, type[SourceError]]] = {
    Status.EINVAL: NoRelayError,
    Status.NOT_SUPPORTED: NoRelayError,
}


def control_step(
    name: str, value: str, *, is_optional: bool = True, since: Release = (0, 0)
) -> BootstrapStep:
    """Return the step of a DCP_CONTROL. Servers older than ``since`` do not get it.

    The connection works if the server refuses an optional one.
    """

    def accepted(bootstrap: "Bootstrap", _: m.Body, __: int) -> "Bootstrap":
        return replace(bootstrap, accepted_controls=bootstrap.accepted_controls | {name})

    def refused(bootstrap: "Bootstrap") -> "Bootstrap":
        return replace(bootstrap, refused_controls=(*bootstrap.refused_controls, name))

    return BootstrapStep(
        f"DCP_CONTROL {name}={value}",
        Opcode.DCP_CONTROL,
        lambda _: m.DcpControl(name.encode(), value.encode()),
        accepted,
        _NO_RELAY if name == GROUP_TAG else {},
        applies=lambda bootstrap: not (0, 0) < bootstrap.server_release < since,
        refused=refused if is_optional else None,
    )


def listed_control(name: str, value: str) -> BootstrapStep:
    """Return the step of a control of the negotiation table, with ``value`` from the settings."""
    term = CONTROL_TERMS[name]
    return control_step(name, value, is_optional=not term.is_required, since=term.since)


OPTIONAL_CONTROLS: Final = (
    listed_control("enable_expiry_opcode", "true"),
    listed_control("supports_cursor_dropping_vulcan", "true"),
    listed_control(STREAM_END_ON_CLOSE, "true"),
    listed_control("max_marker_version", "2.2"),
    listed_control("backfill_order", "sequential"),
)
"""The bootstrap sends them after NOOP and flow control (``required_controls``)."""


@dataclass(frozen=True, slots=True)
class BootstrapSettings:
    """The settings of a connection's set-up."""

    bucket: str
    connection_name: str
    """Must be unique: a server closes an older connection of the same name."""
    agent: str | None = None
    """The whole key of HELLO; None: `agent_text` of the connection."""
    features: tuple[int, ...] = FEATURES
    open_flags: int = OPEN_FLAGS
    controls: tuple[BootstrapStep, ...] = OPTIONAL_CONTROLS
    open_dcp: bool = True
    """False: an ordinary connection, which can ask for cluster maps and seqnos but has no streams.
    """

    def __post_init__(self) -> None:
        name_bytes = len(self.connection_name.encode())
        if not 1 <= name_bytes <= MAX_CONNECTION_NAME_BYTES:
            raise ConfigError(
                f"connection_name: found {name_bytes} bytes, "
                f"expected 1 to {MAX_CONNECTION_NAME_BYTES}"
            )


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The set-up under way: the remaining steps, and the results so far."""

    settings: BootstrapSettings
    credentials: Credentials
    nonce: str = field(repr=False)
    steps: tuple[BootstrapStep, ...]
    features: frozenset[int] = frozenset()
    mechanism: str = ""
    sasl: SaslExchange | None = None
    authenticated: bool = False
    cluster_config: bytes = b""
    server_release: Release = (0, 0)
    """Zeros for development builds and if the server does not say."""
    accepted_controls: frozenset[str] = frozenset()
    refused_controls: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return not self.steps

    @property
    def step(self) -> BootstrapStep:
        return self.steps[0]

    def answer(self, frame: Frame) -> "Bootstrap":
        answered = self.step.answer(self, frame)
        return replace(answered, steps=self.steps[1:]).at_next_step()

    def at_next_step(self) -> "Bootstrap":
        steps = self.steps
        while steps and not steps[0].applies(self):
            steps = steps[1:]
        return replace(self, steps=steps)

    def lost(self, breakage: str = "") -> SourceError:
        """Return the error for a connection that ended before the set-up was done.

        ``breakage`` says how the connection broke; empty: the server closed it.
        """
        kind: type[SourceError] = NodeUnavailableError
        # Without XERROR a server refuses access by closing the connection.
        if not breakage and HelloFeature.XERROR not in self.features and self.authenticated:
            kind = self.step.refusals.get(Status.EACCESS, NodeUnavailableError)
        cure = "expected an answer" if kind is NodeUnavailableError else _cure(kind, self)
        # A service with another protocol closes the connection at the first message.
        if self.step is HELLO:
            cure = PORT_CURE
            if self.credentials.by_certificate:
                cure += f"; or {login_cure(self.credentials)}"
        problem = f"the connection {breakage}" if breakage else "the server closed the connection"
        return kind(f"{self.step.name}: {problem}, {cure}")


_OPTIONAL_REFUSALS: Final = frozenset(
    {
        Status.KEY_ENOENT,
        Status.EINVAL,
        Status.UNKNOWN_COMMAND,
        Status.NOT_SUPPORTED,
        Status.NO_BUCKET,
    }
)
"""Statuses of a server that lacks an optional feature."""
_ANY_REFUSAL: Final[dict[int, type[SourceError]]] = {
    Status.NOT_INITIALIZED: NodeUnavailableError,
    Status.ENOMEM: NodeUnavailableError,
    Status.EBUSY: NodeUnavailableError,
    Status.ETMPFAIL: NodeUnavailableError,
    Status.ECONFIG_ONLY: NodeUnavailableError,
    Status.RATE_LIMITED_MAX_CONNECTIONS: NodeUnavailableError,
    Status.AUTH_ERROR: AuthenticationError,
    Status.AUTH_STALE: AuthenticationError,
}
_NO_LOGIN: Final[dict[int, type[SourceError]]] = {
    Status.EINVAL: AuthenticationError,
    Status.KEY_ENOENT: AuthenticationError,
    Status.EACCESS: AuthenticationError,
    Status.NOT_SUPPORTED: AuthenticationError,
}
_NO_BUCKET: Final[dict[int, type[SourceError]]] = {
    Status.KEY_ENOENT: BucketError,
    Status.EACCESS: BucketError,
    Status.NO_BUCKET: BucketError,
    Status.NOT_SUPPORTED: BucketError,
}


_RELEASE: Final = re.compile(rb"([0-9]{1,3})\.([0-9]{1,3})\b")


def _cure(kind: type[SourceError], bootstrap: Bootstrap) -> str:
    if kind is AuthenticationError:
        return login_cure(bootstrap.credentials)
    if kind is BucketError:
        return bucket_cure(bootstrap.settings.bucket, bootstrap.credentials)
    return "expected a relay" if kind is NoRelayError else "expected success"


def _hello(bootstrap: Bootstrap) -> m.Body:
    settings = bootstrap.settings
    agent = settings.agent
    if agent is None:
        agent = agent_text("dcplake", settings.connection_name)
    return m.Hello(agent.encode(), tuple(int(code) for code in settings.features))


def _hello_answer(bootstrap: Bootstrap, body: m.Body, _: int) -> Bootstrap:
    assert isinstance(body, m.HelloAnswer)
    # A feature changes what frames mean, for instance keys with Collections.
    extra = set(body.features) - set(bootstrap.settings.features)
    if extra:
        raise RemoteProtocolError(f"HELLO: found features {sorted(extra)} granted, not asked for")
    return replace(bootstrap, features=frozenset(body.features))


def _mechanisms_answer(bootstrap: Bootstrap, body: m.Body, _: int) -> Bootstrap:
    assert isinstance(body, m.Text)
    chosen = choose_mechanism(body.value, bootstrap.credentials.mechanisms)
    return replace(bootstrap, mechanism=chosen)


def _exchange(bootstrap: Bootstrap) -> SaslExchange:
    if bootstrap.sasl is not None:
        return bootstrap.sasl
    mechanism = bootstrap.mechanism or bootstrap.credentials.mechanisms[0]
    return SaslExchange.start(mechanism, bootstrap.credentials, bootstrap.nonce)


def _sasl(bootstrap: Bootstrap) -> m.Body:
    exchange = _exchange(bootstrap)
    return m.Sasl(exchange.mechanism.encode(), exchange.payload)


def _sasl_answer(bootstrap: Bootstrap, body: m.Body, status: int) -> Bootstrap:
    assert isinstance(body, m.SaslAnswer)
    exchange = _exchange(bootstrap)
    if status == Status.AUTH_CONTINUE:
        return replace(bootstrap, sasl=exchange.answer(body.payload))
    exchange.verify(body.payload)
    return replace(bootstrap, sasl=None, authenticated=True)


def _config_answer(bootstrap: Bootstrap, body: m.Body, _: int) -> Bootstrap:
    assert isinstance(body, m.Text)
    return replace(bootstrap, cluster_config=body.value)


def _version_answer(bootstrap: Bootstrap, body: m.Body, _: int) -> Bootstrap:
    assert isinstance(body, m.Text)
    found = _RELEASE.match(body.value)
    return replace(bootstrap, server_release=(int(found[1]), int(found[2])) if found else (0, 0))


def _dcp_open(bootstrap: Bootstrap) -> m.Body:
    flags = bootstrap.settings.open_flags
    if HelloFeature.XATTR not in bootstrap.features:
        flags &= ~OpenFlag.INCLUDE_XATTRS
    # Older servers know no other flag to omit values, and answer this one without reading values.
    if (0, 0) < bootstrap.server_release < MAKES_UP_METADATA and flags & _KEYS_AND_DATATYPES:
        flags = flags & ~_KEYS_AND_DATATYPES | OpenFlag.NO_VALUE
    return m.DcpOpen(bootstrap.settings.connection_name.encode(), int(flags))


# PLAIN is done after SASL_AUTH: then SASL_STEP does not apply.
def _signs_in(bootstrap: Bootstrap) -> bool:
    return not bootstrap.authenticated


def _nothing_new(bootstrap: Bootstrap, _: m.Body, __: int) -> Bootstrap:
    return bootstrap


HELLO: Final = BootstrapStep("HELLO", Opcode.HELLO, _hello, _hello_answer)
LIST_MECHANISMS: Final = BootstrapStep(
    "SASL_LIST_MECHS",
    Opcode.SASL_LIST_MECHS,
    lambda _: m.Empty(),
    _mechanisms_answer,
    _NO_LOGIN,
    applies=_signs_in,
)
AUTHENTICATE: Final = BootstrapStep(
    "SASL_AUTH",
    Opcode.SASL_AUTH,
    _sasl,
    _sasl_answer,
    _NO_LOGIN,
    applies=_signs_in,
    continues=True,
)
CONTINUE_AUTHENTICATION: Final = BootstrapStep(
    "SASL_STEP",
    Opcode.SASL_STEP,
    _sasl,
    _sasl_answer,
    _NO_LOGIN,
    applies=_signs_in,
)
SELECT_BUCKET: Final = BootstrapStep(
    "SELECT_BUCKET",
    Opcode.SELECT_BUCKET,
    lambda bootstrap: m.SelectBucket(bootstrap.settings.bucket.encode()),
    _nothing_new,
    _NO_BUCKET,
    applies=lambda bootstrap: HelloFeature.SELECT_BUCKET in bootstrap.features,
)
GET_CLUSTER_CONFIG: Final = BootstrapStep(
    "GET_CLUSTER_CONFIG",
    Opcode.GET_CLUSTER_CONFIG,
    lambda _: m.GetClusterConfig(),
    _config_answer,
    {Status.EACCESS: BucketError},
    refused=lambda bootstrap: bootstrap,
)
# Optional: without a version the server gets all controls and the flags for new servers.
VERSION: Final = BootstrapStep(
    "VERSION",
    Opcode.VERSION,
    lambda _: m.Empty(),
    _version_answer,
    refused=lambda bootstrap: bootstrap,
)
DCP_OPEN: Final = BootstrapStep(
    "DCP_OPEN",
    Opcode.DCP_OPEN,
    _dcp_open,
    _nothing_new,
    {Status.EACCESS: BucketError, Status.NO_BUCKET: BucketError},
)


def required_controls(flow: FlowSettings, liveness: LivenessSettings) -> tuple[BootstrapStep, ...]:
    """Return the controls without which a connection would stall or never notice a dead peer.

    A server may refuse only the windows of streams: then the connection's window limits alone.
    """
    controls = [
        listed_control("enable_noop", "true"),
        listed_control("set_noop_interval", liveness.interval_text),
    ]
    if flow.window_bytes:
        controls.append(listed_control(CONNECTION_WINDOW, str(flow.window_bytes)))
    if flow.stream_window_bytes:
        controls.append(listed_control(STREAM_WINDOW, str(flow.stream_window_bytes)))
    return tuple(controls)


def steps_for(
    settings: BootstrapSettings, flow: FlowSettings, liveness: LivenessSettings
) -> tuple[BootstrapStep, ...]:
    login = (HELLO, LIST_MECHANISMS, AUTHENTICATE, CONTINUE_AUTHENTICATION)
    steps = (*login, SELECT_BUCKET, GET_CLUSTER_CONFIG)
    if not settings.open_dcp:
        return steps
    # Controls come after DCP_OPEN, which makes this a DCP connection, and before the first stream:
    # flow control counts from the moment that the server accepts it.
    controls = (*required_controls(flow, liveness), *settings.controls)
    return (*steps, VERSION, DCP_OPEN, *controls)
