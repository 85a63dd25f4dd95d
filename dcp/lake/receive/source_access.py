"""Derives the connections of driver and tasks from the lake's settings; asks the cluster for its
map.

If no seed answers, dcplake asks the nodes that the lake remembers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.probe import ProbedCluster, SeedAnswer, ask_seed, first_answer, probe_nodes
from dcp.client.reader import SetUpStep
from dcp.client.seed_lookup import FoundSeeds, find_seeds
from dcp.client.settings import ConnectionSettings, ConsumerSettings
from dcp.errors import NodeUnavailableError, RemoteProtocolError, SourceError
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.receive.dropped_policies import DroppedPolicies
from dcp.lake.receive.remembered_nodes import RememberedNodes
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.protocol.credentials import Credentials
from dcp.protocol.refusals import raise_refusal
from dcp.setting_keys import section_of
from dcp.tls_settings import TlsSettings

SEEDS: Final = "source.seeds"
"""The users' name for a lake's seeds."""
Remembered = Callable[[], RememberedNodes | None]
"""Returns the nodes that the lake remembers, if any."""
FindSeeds = Callable[[Sequence[str], ConnectionSettings, Credentials], FoundSeeds]
AskNode = Callable[
    [NodeAddress, ConnectionSettings, Credentials, RememberedNodes | None], SeedAnswer
]


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """The connection settings that a task needs besides its plan.

    They lack the password, because Spark serves task data: the task reads it on its own machine.
    """

    consumer: ConsumerSettings
    source: SourceSettings
    """The driver finds nodes by its seeds, tasks by their plan."""
    flow_control: FlowControlSettings
    quiet_seconds: float
    dropped: DroppedPolicies
    board: BoardFolder

    def of_bucket(self, bucket_uuid: str) -> "SourceAccess":
        """Return the same access for one bucket; it refuses a new bucket of the same name."""
        connection = replace(self.consumer.connection, bucket_uuid=bucket_uuid)
        return replace(self, consumer=replace(self.consumer, connection=connection))


def source_access(settings: Settings, *, change_streams: bool = True) -> SourceAccess:
    """``change_streams`` asks for all versions of each document."""
    source = settings.source
    return SourceAccess(
        consumer=section_of(
            ConsumerSettings,
            settings.round,
            connection=replace(
                connection_settings(source, settings.flow_control),
                change_streams=change_streams,
            ),
        ),
        source=source,
        flow_control=settings.flow_control,
        quiet_seconds=settings.round.quiet_seconds,
        dropped=DroppedPolicies(settings.policy.dropped),
        board=BoardFolder.of(settings),
    )


def connection_settings(source: SourceSettings, flow: FlowControlSettings) -> ConnectionSettings:
    parsed = source.connection_string()
    tls = TlsSettings(source.tls_ca_file, source.tls_cert_file, source.tls_key_file)
    return section_of(
        ConnectionSettings,
        source,
        flow,
        bucket=source.bucket,
        window_bytes=flow.fixed_window_bytes,
        unread_limit_bytes=flow.window_bytes,
        tls=tls if parsed.tls else None,
        network=parsed.network,
    )


def query_cluster(access: SourceAccess, remembered: Remembered = lambda: None) -> ProbedCluster:
    found, manifest = ask_cluster(access, remembered)
    return probe_nodes(found, manifest, access.consumer.connection, access.source.credentials())


def ask_node(
    node: NodeAddress,
    settings: ConnectionSettings,
    credentials: Credentials,
    known: RememberedNodes | None,
    on_step: Callable[[SetUpStep], None] | None = None,
) -> SeedAnswer:
    """Ask a seed, or one of the ``known`` nodes, which must have the lake's bucket.

    Raises:
        ConfigError, SourceError, RemoteProtocolError: as `dcp.client.probe.ask_seed`.
    """
    found, manifest = ask_seed(node, settings, credentials, on_step)
    if known is not None:
        known.require_same_bucket(found)
    return found, manifest


def ask_cluster(
    access: SourceAccess,
    remembered: Remembered,
    *,
    find: FindSeeds = find_seeds,
    ask: AskNode = ask_node,
) -> SeedAnswer:
    """Return the first answer of the seeds, else of nodes that the lake remembers.

    ``remembered`` is called only if no seed answers. ``find`` resolves seeds, or remembered nodes,
    to addresses; ``ask`` asks one of them.

    Raises:
        ConfigError: there is no password.
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
        NodeUnavailableError: neither a seed nor a remembered node answers.
        LakeError: no seed answers with the bucket, and ``remembered`` names another one.
    """
    settings, credentials = access.consumer.connection, access.source.credentials()

    def first(
        seeds: Sequence[str], how: ConnectionSettings, known: RememberedNodes | None, named: str
    ) -> SeedAnswer:
        nodes = find(seeds, how, credentials)
        return first_answer(nodes, lambda node: ask(node, how, credentials, known), named)

    try:
        return first(access.source.seeds, settings, None, SEEDS)
    except (SourceError, RemoteProtocolError) as failure:
        known = remembered()
        theirs = None if known is None else known.connection_settings(settings)
        if known is None or theirs is None:
            raise
        try:
            return first([known.connection_string], theirs, known, "")
        except (SourceError, RemoteProtocolError) as other:
            # A node that left the cluster refuses, too: only a seed's refusal is the user's error.
            raise_refusal([failure])
            told = f"{failure}; nor do the nodes that the lake remembers: {other}"
            raise NodeUnavailableError(told) from other
