"""One authenticated KV connection to one node: blocking, with pipelined requests."""

import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from secrets import token_hex
from typing import Final

from dcp.client.settings import ConnectionSettings
from dcp.errors import (
    AuthenticationError,
    BucketError,
    FrameError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol.credentials import SCRAM_MECHANISMS, Credentials, Secret
from dcp.protocol.refusals import (
    PORT_CURE,
    bucket_cure,
    describe_refusal,
    describe_status,
    login_cure,
    spoken_instead,
    tls_cure,
)
from dcp.protocol.sasl import SaslExchange, choose_mechanism
from dcp.seeds import parse_seed
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import HelloFeature, Opcode, Status

_READ_BYTES: Final = 256 * 1024
_AGENT: Final = b"dcplake-kv"
_FEATURES: Final = (
    HelloFeature.XERROR,
    HelloFeature.SELECT_BUCKET,
    HelloFeature.JSON,
    HelloFeature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
)
"""With the last one a node sends each map once, not with each NOT_MY_VBUCKET."""
_NONCE_BYTES: Final = 18


class KvConnection:
    """A connection whose answers come in the order of the requests.

    All calls raise NodeUnavailableError if the node is lost or silent for too long.
    """

    def __init__(
        self, host: str, port: int, timeout_seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        """Connect, encrypted if ``tls`` is given.

        Raises:
            NodeUnavailableError: the node cannot be reached.
        """
        self.name = f"{host}:{port}"
        self._splitter = FrameSplitter()
        self._received: list[Frame] = []
        self._has_received = False
        try:
            self._socket = socket.create_connection((host, port), timeout_seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._encrypt(tls, host)
        except ssl.SSLError as error:
            raise NodeUnavailableError(
                f"KV node {self.name}: cannot connect encrypted: {error}, {tls_cure(error)}"
            ) from error
        except OSError as error:
            raise NodeUnavailableError(
                f"KV node {self.name}: cannot connect: {error}; expected a data node that listens "
                "there: check host and port"
            ) from error

    def _encrypt(self, tls: ssl.SSLContext, host: str) -> None:
        plain = self._socket
        try:
            self._socket = tls.wrap_socket(plain, server_hostname=host)
        except OSError:
            plain.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def log_in(
        self,
        user: str,
        password: str,
        bucket: str | None,
        *,
        collections: bool = False,
        mechanisms: tuple[str, ...] = SCRAM_MECHANISMS,
    ) -> None:
        """Negotiate features, authenticate by the strongest mechanism, select the bucket, if any.

        ``mechanisms`` are the allowed ones; the default never sends the password. With
        ``collections`` keys begin with their collection's id from now on.

        Raises:
            AuthenticationError: user or password refused, or the node offers no allowed
                mechanism.
            BucketError: no such bucket, or no access to it.
        """
        features = (*_FEATURES, HelloFeature.COLLECTIONS) if collections else _FEATURES
        self.call(encode(m.Hello(_AGENT, features), Opcode.HELLO))
        credentials = Credentials(user, Secret(password), mechanisms)
        self._authenticate(credentials)
        if bucket is not None:
            self._select(bucket, credentials)

    def begin_by_certificate(self, bucket: str | None) -> None:
        """Negotiate features and select the bucket, if any; the client's certificate has signed in.

        Raises:
            BucketError: no such bucket, or no access to it.
        """
        self.call(encode(m.Hello(_AGENT, _FEATURES), Opcode.HELLO))
        if bucket is not None:
            self._select(bucket, Credentials.of_certificate())

    def _select(self, bucket: str, credentials: Credentials) -> None:
        answer = self.call(encode(m.SelectBucket(bucket.encode()), Opcode.SELECT_BUCKET))
        if answer.status != Status.SUCCESS:
            raise BucketError(
                f"KV node {self.name}: found {describe_refusal(answer)}, "
                f"{bucket_cure(bucket, credentials)}"
            )

    def _authenticate(self, credentials: Credentials) -> None:
        offered = self.call(encode(m.Empty(), Opcode.SASL_LIST_MECHS)).value
        try:
            mechanism = choose_mechanism(offered, credentials.mechanisms)
            exchange = SaslExchange.start(mechanism, credentials, token_hex(_NONCE_BYTES))
            answer = self._say(exchange, Opcode.SASL_AUTH)
            if answer.status == Status.AUTH_CONTINUE:
                exchange = exchange.answer(answer.value)
                answer = self._say(exchange, Opcode.SASL_STEP)
            if answer.status == Status.SUCCESS:
                exchange.verify(answer.value)
        except AuthenticationError as error:
            raise AuthenticationError(f"KV node {self.name}: {error}") from None
        if answer.status != Status.SUCCESS:
            raise AuthenticationError(
                f"KV node {self.name}: found {describe_refusal(answer)}, {login_cure(credentials)}"
            )

    def _say(self, exchange: SaslExchange, opcode: Opcode) -> Frame:
        said = m.Sasl(exchange.mechanism.encode(), exchange.payload)
        return self.call(encode(said, opcode))

    def call(self, request: Frame) -> Frame:
        return self.call_all([request])[0]

    def call_all(self, requests: Sequence[Frame]) -> list[Frame]:
        self.send(requests)
        return self.receive(len(requests))

    def send(self, requests: Sequence[Frame]) -> None:
        """Send requests; the caller must ``receive`` an answer to each."""
        try:
            self._socket.sendall(b"".join(request.to_bytes() for request in requests))
        except OSError as error:
            message = f"KV node {self.name}: cannot send: {error}{self._port_cure}"
            raise NodeUnavailableError(message) from error

    def receive(self, count: int) -> list[Frame]:
        while len(self._received) < count:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise NodeUnavailableError(
                    f"KV node {self.name}: waited for {count - len(self._received)} answers: "
                    f"{error}{self._port_cure}"
                ) from error
            if not data:
                message = f"KV node {self.name}: closed the connection{self._port_cure}"
                raise NodeUnavailableError(message)
            try:
                block = self._splitter.feed(data)
            except FrameError as error:
                # The first bytes show which protocol the port speaks.
                if instead := spoken_instead(data):
                    raise NodeUnavailableError(f"KV node {self.name}: {instead}") from None
                raise RemoteProtocolError(f"KV node {self.name}: {error}") from None
            self._has_received = True
            self._received += block.frames(0, len(block))
        answers, self._received = self._received[:count], self._received[count:]
        if not all(answer.magic.is_response for answer in answers):
            raise RemoteProtocolError(f"KV node {self.name}: found a request among the answers")
        return answers

    @property
    def _port_cure(self) -> str:
        """The remedy if the port has never answered as a data node does; otherwise empty."""
        return "" if self._has_received else f", {PORT_CURE}"

    def collection_id(self, path: str) -> int:
        """Return the id of a collection ``scope.collection``.

        Raises:
            BucketError: the bucket has no such collection, or the path is malformed.
        """
        answer = self.call(encode(m.GetId(path.encode()), Opcode.GET_COLLECTION_ID))
        body = decode(answer)
        if not isinstance(body, m.IdAnswer):
            raise BucketError(
                f"KV node {self.name}: collection {path!r}: found "
                f"{describe_status(answer.status)}, "
                "expected a collection of the bucket as SCOPE.NAME (case matters): create it first"
            )
        return body.collection_id

    def buckets(self) -> list[str]:
        """Return the names of the buckets that the user may access.

        Raises:
            SourceError: the node refuses.
        """
        answer = self.call(encode(m.Empty(), Opcode.LIST_BUCKETS))
        body = decode(answer)
        if not isinstance(body, m.Text):
            raise SourceError(
                f"KV node {self.name}: LIST_BUCKETS: found {describe_refusal(answer)}, "
                "expected the buckets"
            )
        return body.value.decode("utf-8", "backslashreplace").split()

    def statistics(self, group: str, options: bytes = b"") -> dict[str, str]:
        """Return the statistics of a group, by name.

        Raises:
            SourceError: the node has no such group, or refuses.
        """
        self.send([encode(m.Stat(group.encode(), options), Opcode.STAT)])
        found: dict[str, str] = {}
        while True:
            (answer,) = self.receive(1)
            if answer.status != Status.SUCCESS:
                raise SourceError(
                    f"KV node {self.name}: statistics {group!r}: found {describe_refusal(answer)}, "
                    "expected them"
                )
            # An answer without a key ends the group.
            if not answer.key:
                return found
            name = answer.key.decode("utf-8", "backslashreplace")
            found[name] = answer.value.decode("utf-8", "backslashreplace")

    def cluster_config(self) -> bytes:
        answer = self.call(encode(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG))
        body = decode(answer)
        if not isinstance(body, m.Text):
            raise BucketError(
                f"KV node {self.name}: found {describe_refusal(answer)}, expected the cluster map"
            )
        return body.value


@contextmanager
def signed_in(
    node: str,
    settings: ConnectionSettings,
    credentials: Credentials,
    timeout_seconds: float,
    *,
    selects_bucket: bool = True,
) -> Iterator[KvConnection]:
    """Give a connection with a node, signed in to the bucket as the settings say.

    Raises:
        NodeUnavailableError: the node cannot be reached, or does not answer in time.
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
    """
    context = None if settings.tls is None else settings.tls.client_context()
    bucket = settings.bucket if selects_bucket else None
    with closing(KvConnection(*parse_seed(node), timeout_seconds, context)) as connection:
        if credentials.by_certificate:
            connection.begin_by_certificate(bucket)
        else:
            connection.log_in(
                credentials.username,
                credentials.password.reveal(),
                bucket,
                mechanisms=credentials.mechanisms,
            )
        yield connection


def stat_number(told: Mapping[str, str], name: str) -> int | None:
    """Return a number; None where it is not told, or is none."""
    text = told.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
