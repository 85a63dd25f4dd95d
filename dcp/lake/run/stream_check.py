"""Opens DCP and streams a vbucket until it proves to have rows, or none."""

from dataclasses import dataclass
from time import monotonic
from typing import Final

from dcp.client.connection import NodeConnection
from dcp.client.reactions import REFUSALS, Reaction, end_reason_name
from dcp.errors import BucketError, DcplakeError, NodeUnavailableError, SourceError
from dcp.lake.run.checked_step import Finding, Tell
from dcp.lake.run.set_up_check import SetUpCheck, costs_of
from dcp.protocol import events as e
from dcp.protocol.negotiation import ALWAYS, CHANGE_STREAMS, CONTROL_TERMS, refused_controls
from dcp.protocol.position import Position
from dcp.protocol.refusals import describe_status


def open_dcp(opened: NodeConnection, tell: Tell) -> None:
    set_up = SetUpCheck(opened.address, tell, is_first=False)
    try:
        opened.open(set_up.begin)
    except DcplakeError as error:
        set_up.fail(error)
        raise
    assert set_up.progress is not None
    progress = set_up.progress
    wanted = {name for name, term in CONTROL_TERMS.items() if term.asked == ALWAYS}
    lacking = (wanted - progress.accepted_controls) | set(progress.refused_controls)
    # Most buckets have no history, by their owners' choice: nothing to warn of.
    refused = refused_controls(sorted(lacking - {CHANGE_STREAMS}))
    finding = Finding()
    finding.say(
        f"opened at {opened.address} as {opened.name}",
        node=str(opened.address),
        name=opened.name,
        refused=refused,
    )
    finding.warnings.extend(costs_of(refused))
    set_up.end(finding)


@dataclass(frozen=True, slots=True)
class WantedStream:
    vbucket: int
    high_seqno: int
    node: str
    deadline: float
    """A time of ``time.monotonic``."""

    def __str__(self) -> str:
        return f"vbucket {self.vbucket} at {self.node}"


def try_stream(
    connection: NodeConnection, wanted: WantedStream, cure: str, finding: Finding
) -> None:
    """Stream a vbucket from its beginning, until it has rows or proves to have none.

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
                    finding.facts.update(vbucket=wanted.vbucket, failover_log=branches)
                    finding.facts["high_seqno"] = wanted.high_seqno
                case e.SnapshotStarted(snapshot=snapshot):
                    told.append(f"first snapshot {snapshot.start}-{snapshot.end}")
        is_idle = bool(told) and not wanted.high_seqno
        if is_idle or any(isinstance(event, _PROGRESS) for event in delivery.events):
            finding.say(", ".join([*told, *(["idle"] if is_idle else [])]))
            return


_PROGRESS: Final = (e.Items, e.SystemEventReceived, e.SnapshotCompleted, e.StreamAdvanced)
"""These events prove that the stream works."""


def _refusal(event: e.Event, wanted: WantedStream, cure: str) -> SourceError | None:
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
