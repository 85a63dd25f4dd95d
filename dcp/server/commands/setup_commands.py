"""Commands that set up a connection: HELLO, SASL, bucket, cluster map, version, statistics."""

from collections.abc import Callable
from itertools import chain
from typing import Final, cast

from dcp.server.bucket.auth import MECHANISMS, Outcome
from dcp.server.commands.error_map import error_map
from dcp.server.commands.refusals import answer_refusal
from dcp.server.commands.session import Access, CommandHandler, Handler, Session
from dcp.server.commands.stat_groups import statistics_of
from dcp.server.commands.stat_request import text_of
from dcp.server.model.refused_error import RefusedError
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode, Status

_JSON: Final = int(Datatype.JSON)
_ADJUST_TIME: Final = 0xFD
_ADJUST_TIME_EXTRAS_BYTES: Final = 12
_NO_GLOBAL_MAP: Final = "Without a bucket, only administrators may read the map"

GRANTED: Final = frozenset(
    {
        HelloFeature.TCP_NODELAY,
        HelloFeature.MUTATION_SEQNO,
        HelloFeature.XATTR,
        HelloFeature.XERROR,
        HelloFeature.SELECT_BUCKET,
        HelloFeature.SNAPPY,
        HelloFeature.JSON,
        HelloFeature.DUPLEX,
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION,
        HelloFeature.ALT_REQUEST,
        HelloFeature.SYNC_REPLICATION,
        HelloFeature.COLLECTIONS,
        HelloFeature.GET_CLUSTER_CONFIG_WITH_GIVEN_VERSION,
        HelloFeature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
    }
)
"""Features that the server grants. Missing are those that permit answers out of order, or in
alternative framing (Tracing)."""


def hello(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Grant the supported features among the requested ones; each HELLO replaces the last."""
    if len(frame.value) % 2:
        session.refuse(frame, Status.EINVAL, "Request value must be of even length")
        return
    asked = cast("m.Hello", body).features
    granted = tuple(sorted(GRANTED.intersection(asked)))
    full = HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION
    brief = HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF
    # Notifications are requests of the server, which only clients with Duplex expect.
    if not {full, brief}.isdisjoint(granted) and HelloFeature.DUPLEX not in granted:
        session.refuse(frame, Status.EINVAL, "Clustermap notifications need Duplex")
        return
    if brief in granted:  # brief notifications win
        granted = tuple(feature for feature in granted if feature != full)
    session.login.grant(frozenset(granted))
    session.reply(frame, m.HelloAnswer(granted))


def sasl_mechanisms(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    session.reply(frame, m.Text(MECHANISMS))


def sasl_auth(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    # An earlier authentication is void from here on, even if this one fails.
    session.login.begin_authentication()
    _converse(session, frame, body, session.login.sasl.start)


def sasl_step(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    _converse(session, frame, body, session.login.sasl.step)


def _converse(
    session: Session, frame: Frame, body: m.Body, answer_of: Callable[[bytes, bytes], Outcome]
) -> None:
    request = cast("m.Sasl", body)
    try:
        user, payload = answer_of(request.mechanism, request.payload)
    except RefusedError as refused:
        session.refuse(frame, refused.status, str(refused))
        return
    if user is None:
        session.reply(frame, m.SaslAnswer(payload), status=Status.AUTH_CONTINUE)
    else:
        session.login.authenticated(user)
        session.reply(frame, m.SaslAnswer(payload))


def _without_certificate(handler: Handler) -> Handler:
    """Refuse SASL to a client whose certificate names the user (kv_engine ``sasl_*``)."""

    def handle(session: Session, frame: Frame, body: m.Body, now: float) -> None:
        if session.login.has_certificate:
            session.refuse(frame, Status.NOT_SUPPORTED)
        else:
            handler(session, frame, body, now)

    return handle


def select_bucket(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Select the only bucket; any other name is refused like a bucket without access."""
    name = cast("m.SelectBucket", body).bucket
    session.map_notifier.forget()
    session.login.select_bucket(is_there=name == session.bucket.name.encode())
    if session.login.has_bucket or name == b"@no bucket@":
        session.reply(frame, m.Empty())
    else:
        session.refuse_access(frame, Status.EACCESS)


def get_cluster_config(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer the map; an empty body if the client names this revision or a newer one."""
    known, map_ = cast("m.GetClusterConfig", body), session.bucket.map
    if session.login.has_bucket:
        session.map_notifier.sent()
    # Without a bucket the answer is the cluster's map, for administrators only (kv_engine
    # ``daemon/protocol/mcbp/cluster_config_executor.cc``).
    elif not session.bucket.settings.is_administrator(session.login.user):
        session.refuse_access(frame, Status.EACCESS, _NO_GLOBAL_MAP)
        return
    if map_.is_known_to(known.epoch, known.rev):
        session.reply(frame, m.Text(b""))
    elif session.login.has_bucket:
        session.reply(frame, m.Text(map_.as_json(session.node)), datatype=_JSON)
    else:
        session.reply(frame, m.Text(map_.without_bucket_as_json(session.node)), datatype=_JSON)


def version(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    session.reply(frame, m.Text(session.bucket.settings.version.encode()))


def noop(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    session.reply(frame, m.Empty())


def quit_connection(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    """Answer, then close."""
    session.reply(frame, m.Empty())
    session.close()


def get_error_map(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    found = error_map(cast("m.GetErrorMap", body).version)
    if found is None:
        session.refuse(frame, Status.KEY_ENOENT)
    else:
        datatype = _JSON if HelloFeature.JSON in session.login.features else 0
        session.reply(frame, m.Text(found), datatype=datatype)


def adjust_time(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    """Refuse to change the clock; servers allow that in their own tests only."""
    if len(frame.extras) != _ADJUST_TIME_EXTRAS_BYTES:
        context = f"Request must include extras of length {_ADJUST_TIME_EXTRAS_BYTES}"
        session.refuse(frame, Status.EINVAL, context)
    else:
        session.refuse(frame, Status.NOT_SUPPORTED)


def list_buckets(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    session.reply(frame, m.Text(session.bucket.name.encode()))


def stat(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer one frame for each statistic, then an empty one."""
    asked = cast("m.Stat", body)
    try:
        found = statistics_of(session.bucket, session.node, asked.group, asked.value)
    except RefusedError as refused:
        answer_refusal(session, frame, refused)
        return
    answers = (m.StatAnswer(name.encode(), text_of(value).encode()) for name, value in found)
    session.reply_with_many(frame, chain(answers, (m.StatAnswer(),)))


SETUP_COMMANDS: Final[dict[int, CommandHandler]] = {
    Opcode.HELLO: CommandHandler(Access.ANYBODY, hello, before_dcp_open=True),
    Opcode.SASL_LIST_MECHS: CommandHandler(
        Access.ANYBODY, _without_certificate(sasl_mechanisms), before_dcp_open=True
    ),
    Opcode.SASL_AUTH: CommandHandler(
        Access.ANYBODY, _without_certificate(sasl_auth), before_dcp_open=True
    ),
    Opcode.SASL_STEP: CommandHandler(
        Access.ANYBODY, _without_certificate(sasl_step), before_dcp_open=True
    ),
    Opcode.GET_ERROR_MAP: CommandHandler(Access.ANYBODY, get_error_map),
    Opcode.SELECT_BUCKET: CommandHandler(Access.USER, select_bucket, before_dcp_open=True),
    _ADJUST_TIME: CommandHandler(Access.ANYBODY, adjust_time),
    Opcode.LIST_BUCKETS: CommandHandler(Access.USER, list_buckets),
    Opcode.VERSION: CommandHandler(Access.USER, version),
    Opcode.NOOP: CommandHandler(Access.USER, noop),
    Opcode.QUIT: CommandHandler(Access.USER, quit_connection),
    Opcode.STAT: CommandHandler(Access.BUCKET, stat),
    Opcode.GET_CLUSTER_CONFIG: CommandHandler(Access.USER, get_cluster_config),
}
