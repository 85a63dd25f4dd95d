"""The stream's transition table, exhaustively, and what each input does to the position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import DcplakeError, LocalProtocolError, RemoteProtocolError
from dcp.protocol.position import Position
from dcp.protocol.stream import STREAMING_PHASES, TRANSITIONS, Stream, StreamInput, StreamPhase
from dcp.types import FailoverEntry, FailoverLog, SnapshotRange
from tests.protocol.scripted import LOG, UUID

P, I = StreamPhase, StreamInput  # noqa: E741

PATHS: dict[StreamPhase, tuple[StreamInput, ...]] = {
    P.REQUESTED: (),
    P.OPEN: (I.ACCEPT,),
    P.IN_SNAPSHOT: (I.ACCEPT, I.MARKER),
    P.IN_OSO: (I.ACCEPT, I.OSO_BEGIN),
    P.CLOSING: (I.ACCEPT, I.CLOSE),
    P.DRAINING: (I.ACCEPT, I.CLOSE, I.CLOSED_END_FOLLOWS),
    P.ENDED: (I.REFUSE,),
}


def apply(stream: Stream, cause: StreamInput) -> Stream:
    """Feed an input that is harmless but for the table."""
    above = max(stream.position.seqno, stream.oso_highest) + 1
    match cause:
        case I.ACCEPT:
            return stream.accept(LOG)
        case I.REFUSE:
            return stream.refuse()
        case I.MARKER:
            return stream.begin_snapshot(SnapshotRange(0, above + 1000), 1)
        case I.ITEM:
            return stream.items(above, above)
        case I.ADVANCED:
            return stream.advance(above)
        case I.OSO_BEGIN:
            return stream.begin_oso()
        case I.OSO_FINISH:
            return stream.finish_oso()
        case I.END:
            return stream.end()
        case I.CLOSE:
            return stream.close()
        case I.CLOSED_END_FOLLOWS:
            return stream.closed(end_follows=True)
        case I.CLOSED:
            return stream.closed(end_follows=False)


def new_stream(position: Position | None = None) -> Stream:
    return Stream.request(7, position or Position.beginning())


def in_phase(phase: StreamPhase) -> Stream:
    stream = new_stream()
    for cause in PATHS[phase]:
        stream = apply(stream, cause)
    assert stream.phase is phase
    return stream


@pytest.mark.parametrize("phase", StreamPhase)
@pytest.mark.parametrize("cause", StreamInput)
def test_every_state_and_input(phase: StreamPhase, cause: StreamInput) -> None:
    """The table decides alone: a pair moves to its target, a missing one is the error."""
    stream = in_phase(phase)
    target = TRANSITIONS.get((phase, cause))
    if target is not None:
        assert apply(stream, cause).phase is target
        return
    fault = LocalProtocolError if cause is I.CLOSE else RemoteProtocolError
    with pytest.raises(fault, match=r"found .* on a stream that is"):
        apply(stream, cause)
    assert stream == in_phase(phase)


def test_no_phase_is_unreachable_and_ended_is_final() -> None:
    reached = {P.REQUESTED} | set(TRANSITIONS.values())
    assert reached == set(StreamPhase)
    assert not any(phase is P.ENDED for phase, _ in TRANSITIONS)


@given(st.lists(st.sampled_from(list(StreamInput)), max_size=40))
def test_any_sequence_of_inputs_keeps_the_invariants(causes: list[StreamInput]) -> None:
    stream = new_stream()
    for cause in causes:
        before = stream
        try:
            stream = apply(stream, cause)
        except DcplakeError:
            assert (before.phase, cause) not in TRANSITIONS or before.is_streaming
            continue
        assert TRANSITIONS[before.phase, cause] is stream.phase
        assert stream.position.seqno >= before.position.seqno
        assert stream.position.complete_seqno >= before.position.complete_seqno
        if before.phase not in STREAMING_PHASES:
            assert stream.position == before.position, "only streaming ones move"


def test_a_pending_marker_does_not_move_the_position() -> None:
    stream = new_stream().accept(LOG).begin_snapshot(SnapshotRange(0, 10), 1)
    assert stream.position == Position.beginning()
    assert stream.items(3, 4).position == Position(UUID, 4, 0, 10, 0)


def test_the_end_of_a_stream_inside_a_snapshot_completes_nothing() -> None:
    """It is legal: a move, a close, a dropped collection. What was delivered waits."""
    stream = new_stream().accept(LOG).begin_snapshot(SnapshotRange(0, 10), 1).items(1, 9).end()
    assert stream.position == Position(UUID, 9, 0, 10, 0)


def test_an_out_of_order_snapshot_counts_when_it_has_ended() -> None:
    stream = new_stream(Position.complete_at(UUID, 5)).accept(LOG).begin_oso()
    stream = stream.items(6, 50).items(7, 40).advance(60)
    assert stream.position == Position.complete_at(UUID, 5)
    assert stream.finish_oso().position == Position.complete_at(UUID, 60)
    assert stream.end().position == Position.complete_at(UUID, 5)


def test_an_out_of_order_item_that_we_hold_already_is_a_violation() -> None:
    stream = new_stream(Position.complete_at(UUID, 5)).accept(LOG).begin_oso()
    with pytest.raises(RemoteProtocolError, match="found seqno 5, expected more than 5"):
        stream.items(5, 9)


def test_an_empty_out_of_order_snapshot_moves_nothing() -> None:
    stream = new_stream().accept(LOG).begin_oso().finish_oso()
    assert stream.position == Position.beginning()
    assert stream.phase is P.OPEN


@pytest.mark.parametrize(
    ("end", "expected"),
    [(5, 1), (10, 1), (49, 1), (50, 2), (99, 2), (100, 3), (200, 3)],
)
def test_positions_name_the_branch_that_holds_the_end_of_their_snapshot(
    end: int, expected: int
) -> None:
    """With an older one the producer, which knows where that ended, would take it back."""
    log = FailoverLog((FailoverEntry(3, 100), FailoverEntry(2, 50), FailoverEntry(1, 10)))
    stream = new_stream().accept(log).begin_snapshot(SnapshotRange(0, end), 2)
    found = [stream.items(seqno, seqno).position.vb_uuid for seqno in (1, 4, end)]
    assert found == [expected] * 3
    assert stream.advance(2).position.vb_uuid == expected


def test_a_longer_snapshot_after_a_resume_changes_the_branch() -> None:
    log = FailoverLog((FailoverEntry(2, 50), FailoverEntry(1, 0)))
    stream = new_stream(Position(1, 20, 0, 40, 0)).accept(log)
    stream = stream.begin_snapshot(SnapshotRange(0, 60), 2)
    assert stream.position == Position(1, 20, 0, 40, 0)
    assert stream.items(21, 21).position == Position(2, 21, 0, 60, 0)
    assert stream.items(21, 60).position == Position.complete_at(2, 60)
