"""Checks the way from this machine to the stream of a bucket, step by step, as a run takes it.

The connections are those of the consumer: the first ones ask a seed and then all nodes, as every
run does before it plans, and the last one opens DCP and streams a vbucket. So a step that is told
as done is one that a run gets through. The first that fails ends it, with the error that a run
would end with. Nothing is written, and no Spark is started.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.connection_names import unique_name
from dcp.client.probe import ClusterView, ask_seed, look_at_nodes
from dcp.client.reactions import REFUSALS, Reaction, end_reason_name
from dcp.client.set_up import TCP, TLS, SetUpStep
from dcp.client.settings import ConnectionSettings
from dcp.errors import (
    AuthenticationError,
    BucketError,
    DcplakeError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.lake.config.settings import Settings
from dcp.lake.log.lake_position import require_same_bucket
from dcp.lake.receive.source_access import source_access
from dcp.lake.tables.collections import replicas_of
from dcp.lake.tables.opening import lake_location
from dcp.lake.tables.tables import find_lake
from dcp.printable import number_ranges
from dcp.protocol import bootstrap
from dcp.protocol import events as e
from dcp.protocol.credentials import Credentials
from dcp.protocol.negotiation import ALWAYS, CONTROL_TERMS, refused_controls, refused_features
from dcp.protocol.position import Position
from dcp.protocol.refusals import bucket_cure, describe_status
from dcp.wire.vocabulary import HelloFeature

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dcp.client.cluster_map import ClusterMap

_SECONDS_A_DAY: Final = 86_400
_FEW_DAYS: Final = 30
"""A certificate that ends so soon is worth a warning."""


class StepState(StrEnum):
    """The end of a step: with a warning a run works, without something or not for long."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step that is over: what was found in words, and for machines."""

    name: str
    state: StepState
    seconds: float
    found: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "step": self.name,
            "state": str(self.state),
            "seconds": round(self.seconds, 3),
            "found": self.found,
            **self.facts,
        }


@dataclass(slots=True)
class Finding:
    """The findings of a step so far."""

    text: str = ""
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str, **facts: Any) -> None:
        """Say what was found."""
        self.text = text
        self.facts |= facts

    def checked(self, name: str, begun: float) -> CheckedStep:
        """Return the step, over by now."""
        found = "; ".join([self.text, *self.warnings])
        state = StepState.WARNING if self.warnings else StepState.OK
        return CheckedStep(name, state, monotonic() - begun, found, self.facts)


Tell = Callable[[CheckedStep], None]
"""Hears of each step when it is over; of those of a connection's set-up in another thread."""


@contextmanager
def checking(name: str, tell: Tell) -> Iterator[Finding]:
    """Do a step, and tell it: what was found, or the error that it ends with."""
    begun = monotonic()
    finding = Finding()
    try:
        yield finding
    except DcplakeError as error:
        tell(CheckedStep(name, StepState.FAILED, monotonic() - begun, str(error)))
        raise
    tell(finding.checked(name, begun))


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """A source whose every step is done, and what became known of it."""

    settings: Settings
    connection: ConnectionSettings
    credentials: Credentials
    cluster: ClusterView


def check_source(load: Callable[[], Settings], tell: Tell) -> CheckedSource:
    """Go from the settings that ``load`` returns to the first rows of a vbucket.

    Raises:
        DcplakeError: the first step that fails, told before.

    """
    with checking("configuration", tell) as finding:
        settings = load()
        access, source = source_access(settings), settings.source
        connection, credentials = access.consumer.connection, source.credentials()
        if connection.tls is not None:
            connection.tls.context()
        where = source.password_file or f"the environment variable {source.password_env}"
        finding.say(
            f"bucket {source.bucket!r} at {', '.join(access.seeds)}, user {source.username!r}, "
            f"its password in {where}, {'TLS' if source.tls else 'no TLS'}"
        )
    seeds = [NodeAddress.parse(seed) for seed in access.seeds]
    with checking("name resolution", tell) as finding:
        _resolve(seeds, finding)
    found, manifest = _ask_seeds(seeds, connection, credentials, tell)
    with checking("cluster map", tell) as finding:
        _look_at_map(found, connection, finding)
    with checking("data nodes", tell) as finding:
        cluster = look_at_nodes(found, manifest, connection, credentials)
        _require_all_nodes(cluster, finding)
        vbucket, node = _small_vbucket(cluster)
    name = unique_name("dcplake-doctor", connection.bucket)
    opened = NodeConnection(node, connection, credentials, name)
    try:
        _open_dcp(opened, tell)
        with checking("stream", tell) as finding:
            deadline = monotonic() + settings.round.node_deadline_seconds
            wanted = _Wanted(vbucket, cluster.high_seqnos[vbucket], str(node), deadline)
            _stream(opened, wanted, bucket_cure(found.bucket, credentials.username), finding)
    finally:
        opened.close()
    return CheckedSource(settings, connection, credentials, cluster)


def _resolve(seeds: Sequence[NodeAddress], finding: Finding) -> None:
    """Look the seeds' names up; one that is found is enough for a run."""
    found: dict[str, list[str]] = {}
    unknown: list[str] = []
    for seed in seeds:
        try:
            answers = socket.getaddrinfo(seed.host, seed.port, type=socket.SOCK_STREAM)
        except OSError as error:
            unknown.append(
                f"{seed.host}: {error.strerror or error}, expected a name that this machine can "
                "resolve: check source.seeds and its DNS"
            )
        else:
            found[seed.host] = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    if not found:
        raise NodeUnavailableError("; ".join(unknown))
    told = (f"{host}: {', '.join(addresses)}" for host, addresses in found.items())
    finding.say("; ".join(told), addresses=found)
    finding.warnings += unknown


# --- the set-up of connections


_LINES: Final = {
    TCP: "TCP",
    TLS: "TLS",
    bootstrap.HELLO.name: "HELLO",
    bootstrap.LIST_MECHANISMS.name: "SASL",
    bootstrap.AUTHENTICATE.name: "SASL",
    bootstrap.CONTINUE_AUTHENTICATION.name: "SASL",
    bootstrap.SELECT_BUCKET.name: "bucket",
    bootstrap.GET_CLUSTER_CONFIG.name: "bucket",
}
_DCP: Final = "DCP"
"""VERSION, DCP_OPEN, and the controls."""


class _SetUp:
    """Tells the steps of one connection's set-up, each when the next one begins."""

    def __init__(self, node: NodeAddress, tell: Tell, *, is_first: bool) -> None:
        """``is_first``: also what comes before DCP, which is the same for later connections."""
        self._node = node
        self._tell = tell
        self._is_first = is_first
        self._name = ""
        self._begun = monotonic()
        self.progress: bootstrap.BootstrapProgress | None = None

    def begin(self, step: SetUpStep) -> None:
        """Note that a step begins, or that all are done."""
        self.progress = step.progress
        name = _LINES.get(step.name, _DCP)
        if step.name and name != self._name:
            if self._name and self._is_first:
                finding = Finding()
                _DESCRIBED[self._name](step, self._node, finding)
                with suppress(BrokenPipeError):  # this is not its thread: the next line ends it
                    self._tell(finding.checked(self._name, self._begun))
            self._name, self._begun = name, monotonic()

    def end(self, finding: Finding) -> None:
        """Tell the last step."""
        self._tell(finding.checked(self._name, self._begun))

    def fail(self, error: DcplakeError, state: StepState = StepState.FAILED) -> None:
        """Tell that the step under way failed."""
        self._tell(CheckedStep(self._name, state, monotonic() - self._begun, str(error)))


def _tcp(_: SetUpStep, node: NodeAddress, finding: Finding) -> None:
    finding.say(f"connected to {node}")


def _tls(step: SetUpStep, _: NodeAddress, finding: Finding) -> None:
    assert step.line is not None
    certificate = step.line.certificate
    names = [name for _, name in certificate.get("subjectAltName", ())]
    names = names or _common_names(certificate.get("subject", ()))
    issuer = ", ".join(_common_names(certificate.get("issuer", ()))) or "(no name)"
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    days = int((ends - time.time()) // _SECONDS_A_DAY)
    finding.say(
        f"{step.line.tls_version}, certificate of {', '.join(names)}, by {issuer}, {days} days "
        "left",
        names=names,
        issuer=issuer,
        days_left=days,
    )
    if days < _FEW_DAYS:
        finding.warnings.append("renew it soon")


def _common_names(name: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Return the common names, else all, of a name as ``ssl`` has it."""
    parts = [part for group in name for part in group]
    return [value for key, value in parts if key == "commonName"] or [value for _, value in parts]


def _hello(step: SetUpStep, _: NodeAddress, finding: Finding) -> None:
    granted = [HelloFeature(code).name for code in sorted(step.progress.features)]
    refused = refused_features(step.progress.features, step.progress.settings.features)
    finding.say(f"granted {', '.join(granted)}", granted=granted, refused=refused)
    finding.warnings += _costs(refused)


def _costs(refused: Mapping[str, str]) -> list[str]:
    return [f"without {name}: {lost}" for name, lost in refused.items()]


def _sasl(step: SetUpStep, _: NodeAddress, finding: Finding) -> None:
    mechanism, user = step.progress.mechanism, step.progress.credentials.username
    finding.say(f"signed in as {user!r} by {mechanism}", mechanism=mechanism)


_DESCRIBED: Final[Mapping[str, Callable[[SetUpStep, NodeAddress, Finding], None]]] = {
    "TCP": _tcp,
    "TLS": _tls,
    "HELLO": _hello,
    "SASL": _sasl,
}


def _ask_seeds(
    seeds: Sequence[NodeAddress],
    settings: ConnectionSettings,
    credentials: Credentials,
    tell: Tell,
) -> "tuple[ClusterMap, bytes | None]":
    """Return what the first seed says that answers, as the probe of a run does."""
    for seed in seeds:
        set_up = _SetUp(seed, tell, is_first=True)
        try:
            found, manifest = ask_seed(seed, settings, credentials, set_up.begin)
        except (SourceError, RemoteProtocolError) as error:
            is_fatal = isinstance(error, AuthenticationError | BucketError)
            if is_fatal or seed == seeds[-1]:
                set_up.fail(error)
                raise
            set_up.fail(error, StepState.WARNING)
        else:
            collections, finding = len(replicas_of(manifest)), Finding()
            finding.say(
                f"{found.bucket!r}, uuid {found.bucket_uuid or '(not told)'}, "
                f"vbuckets: {found.vbucket_count}, collections: {collections}",
                uuid=found.bucket_uuid,
                vbuckets=found.vbucket_count,
                collections=collections,
            )
            set_up.end(finding)
            return found, manifest
    raise ValueError("seeds: found none, expected at least one")


# --- the cluster


def _look_at_map(found: "ClusterMap", settings: ConnectionSettings, finding: Finding) -> None:
    nodes = [str(node) for node in found.addresses]
    if not nodes:
        kind = "TLS port of a data node" if settings.tls is not None else "data node"
        raise NodeUnavailableError(
            f"cluster map of bucket {found.bucket!r}, revision {found.rev}: found no {kind}, "
            "expected one: check the cluster, and source.tls"
        )
    finding.say(
        f"revision {found.rev}, data nodes: {', '.join(nodes)}",
        revision=found.rev,
        nodes=nodes,
    )
    homeless = [each for each in range(found.vbucket_count) if found.owner(each) is None]
    if homeless:
        finding.facts["vbuckets_without_node"] = homeless
        finding.warnings.append(
            f"vbuckets {number_ranges(homeless)} have no node: a run leaves them out, until the "
            "cluster fails over or rebalances"
        )


def _require_all_nodes(cluster: ClusterView, finding: Finding) -> None:
    if cluster.unreachable:
        told = "; ".join(f"{node}: {reason}" for node, reason in cluster.unreachable.items())
        raise NodeUnavailableError(
            f"{len(cluster.unreachable)} of {len(cluster.map.addresses)} data nodes: {told}; "
            "expected this machine, and those of Spark's executors, to reach every node at the "
            "address that the cluster map has: check DNS, routes and firewalls for all of them"
        )
    seqnos = sum(cluster.high_seqnos.values())
    finding.say(
        f"all reached, active vbuckets: {len(cluster.high_seqnos)}, seqnos of all: {seqnos:,}",
        active_vbuckets=len(cluster.high_seqnos),
        seqnos=seqnos,
    )


def _small_vbucket(cluster: ClusterView) -> tuple[int, NodeAddress]:
    """Return the vbucket that is the least to read, but not nothing if there is one, and its node.

    Raises:
        NodeUnavailableError: no vbucket is active.

    """
    candidates = [
        (seqno == 0, seqno, vbucket, node)
        for vbucket, seqno in cluster.high_seqnos.items()
        if vbucket < cluster.map.vbucket_count and (node := cluster.map.owner(vbucket)) is not None
    ]
    if not candidates:
        raise NodeUnavailableError(
            f"bucket {cluster.map.bucket!r}: found no active vbucket, expected some: the bucket is "
            "still being made, or the cluster is not well"
        )
    *_, vbucket, node = min(candidates)
    return vbucket, node


# --- DCP


def _open_dcp(opened: NodeConnection, tell: Tell) -> None:
    """Open DCP with all the settings of a run, and tell what was negotiated."""
    set_up = _SetUp(opened.address, tell, is_first=False)
    try:
        opened.open(set_up.begin)
    except DcplakeError as error:
        set_up.fail(error)
        raise
    assert set_up.progress is not None
    progress = set_up.progress
    wanted = {name for name, term in CONTROL_TERMS.items() if term.asked == ALWAYS}
    refused = refused_controls(
        sorted((wanted - progress.accepted_controls) | set(progress.refused_controls))
    )
    finding = Finding()
    finding.say(
        f"opened at {opened.address} as {opened.name}",
        node=str(opened.address),
        name=opened.name,
        refused=refused,
    )
    finding.warnings += _costs(refused)
    set_up.end(finding)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The stream to try, and until when (``time.monotonic``)."""

    vbucket: int
    high_seqno: int
    node: str
    deadline: float

    def __str__(self) -> str:
        return f"vbucket {self.vbucket} at {self.node}"


def _stream(connection: NodeConnection, wanted: _Wanted, cure: str, finding: Finding) -> None:
    """Stream a vbucket from its beginning, until there are rows or it proves to have none.

    Raises:
        BucketError: no access to the documents; the message says ``cure``.
        SourceError: the node refuses the stream, or ends it.
        NodeUnavailableError: nothing comes until the deadline, or the connection is lost.

    """
    connection.open_stream(wanted.vbucket, Position.beginning())
    told: list[str] = []
    while True:
        delivery = connection.next(max(0.0, wanted.deadline - monotonic()))
        if delivery is None:
            raise NodeUnavailableError(
                f"{wanted}: found no rows in time, expected those of a snapshot up to seqno "
                f"{wanted.high_seqno}: look at the node (of a relay: is its group complete?), or "
                "give it longer (round.node_deadline_seconds)"
            )
        delivery.release()
        for event in delivery.events:
            if (error := _refusal(event, wanted, cure)) is not None:
                raise error
            match event:
                case e.StreamOpened(failover_log=log):
                    branches = [[f"{each.vb_uuid:016x}", each.seqno] for each in log.entries]
                    told.append(f"{wanted}, high seqno {wanted.high_seqno}")
                    told.append(f"branch {branches[0][0]} of {len(branches)}")
                    finding.facts |= {"vbucket": wanted.vbucket, "failover_log": branches}
                    finding.facts["high_seqno"] = wanted.high_seqno
                case e.SnapshotStarted(snapshot=snapshot):
                    told.append(f"first snapshot {snapshot.start}-{snapshot.end}")
        is_idle = bool(told) and not wanted.high_seqno
        if is_idle or any(isinstance(event, _PROGRESS) for event in delivery.events):
            finding.say(", ".join([*told, *(["idle"] if is_idle else [])]))
            return


_PROGRESS: Final = (e.Items, e.SystemEventReceived, e.SnapshotCompleted, e.StreamAdvanced)
"""What proves that the stream brings what it has."""


def _refusal(event: e.Event, wanted: _Wanted, cure: str) -> SourceError | None:
    """Return the error that an event means for the stream; None where it means none."""
    match event:
        case e.StreamRejected():
            return SourceError(f"{wanted}: {event.detail}")
        case e.StreamEnded():
            reason = end_reason_name(event.reason)
            return SourceError(f"{wanted}: found the stream ended: {reason}, expected its rows")
        case e.StreamRefused():
            told = f"{wanted}: DCP_STREAM_REQ: found {describe_status(event.status)}"
            if REFUSALS.get(event.status) is Reaction.FAIL_BUCKET:
                return BucketError(f"{told}, {cure}")
            return SourceError(f"{told}, expected success")
    return None


# --- the lake


class _NeedsSparkError(Exception):
    """The lake cannot be read without Spark."""


def check_lake(source: CheckedSource, tell: Tell) -> None:
    """Look if there is a lake at the configured place, and if it is of this bucket.

    Raises:
        LakeError: it holds another bucket, or what is there is no lake.

    """

    def refuse() -> "SparkSession":
        raise _NeedsSparkError

    location = lake_location(source.settings)
    with checking("lake", tell) as finding:
        try:
            lake = find_lake(refuse, location)
        except _NeedsSparkError:
            finding.say(f"{location}: not looked at, which takes Spark: `dcplake status` does")
            return
        if lake is None:
            finding.say(f"{location}: none yet, the first run makes it")
            return
        require_same_bucket(lake, source.cluster, source.settings.source.bucket)
        finding.say(f"{location}: of this bucket", lake_id=lake.identity.lake_id)
