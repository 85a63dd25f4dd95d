"""A conversation repeated: the client's part is played to our producer, which must be the server.

Nothing waits: the client's bytes and the passing of time are handed over as late as what was
recorded allows, and the producer is asked for the next frame when the recorded server sent it. So
it acts in the recorded order, however fast it is. After a silence of the recording everything said
before must have had its effect: what ours has sent by then its client has read, or reads next, for
a line is written when its client reads it.

Answers come in the order of the requests; stream messages in order per vbucket (and stream id).
Each connection is compared until its first difference. One thing may come earlier than it did: the
end of a bounded stream behind an out-of-order snapshot. And where a recording shows three markers
with no item between them it leaves items out, from there on: the markers are compared.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from dcp.errors import AuthenticationError, LocalProtocolError
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status
from tests.conformance_formats.case_file import CaseResult
from tests.producer_conformance.client_part import ClientPart
from tests.producer_conformance.comparison import differences, is_of_the_server
from tests.producer_conformance.conversation import Conversation, Event, Kind
from tests.producer_conformance.plan import HandOver, Order, SetUp, Write, make_plan
from tests.producer_conformance.played_connection import (
    Channel,
    PlayedConnection,
    Said,
    channel_of,
    name_of,
)
from tests.producer_conformance.sightings import Marker, Sightings, StreamKey
from tests.producer_conformance.statistics import difference_of
from tests.producer_conformance.subject import Subject
from tests.producer_conformance.watching import watch

NOOP_SLACK_SECONDS: Final = 1.0
"""The recorded server counts whole seconds: a NOOP may come so much before its interval is over."""
_ITEMS: Final = frozenset({Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION})
_NEVER_ANSWERED: Final = frozenset({Opcode.DCP_BUFFER_ACK})


def rehearse(conversation: Conversation) -> Iterator[CaseResult]:
    """Yield one result per connection: its first difference, if there is one."""
    for part in conversation.by_bucket():
        yield from Rehearsal(part).run()


class Rehearsal:
    """One conversation with one producer."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._sightings: Sightings = watch(conversation)
        self._plan = make_plan(self._sightings)
        self._subject = Subject(self._sightings)
        self._played: dict[int, PlayedConnection] = {}
        self._markers: dict[int, dict[tuple[int, StreamKey], list[Marker]]] = {}
        for vbucket, markers in self._sightings.markers.items():
            of_streams = self._markers.setdefault(vbucket, {})
            for one in markers:
                of_streams.setdefault((one.connection, one.stream), []).append(one)
        self._marker_ends = {
            one.line: one.end for markers in self._sightings.markers.values() for one in markers
        }
        self._server_lines: dict[int, list[tuple[int, Channel]]] = defaultdict(list)
        for event in conversation.events:
            if event.kind is Kind.SERVER and event.connection is not None:
                self._server_lines[event.connection].append(
                    (event.line, channel_of(event.frames[0]))
                )

    def run(self) -> Iterator[CaseResult]:
        """Play all lines."""
        for event in self._conversation.events:
            if event.line in self._sightings.map_pushed and event.connection is not None:
                self._subject.new_map(self._played[event.connection].line)
            if event.line in self._sightings.manifests:
                self._subject.learn_manifest(self._sightings.manifests[event.line])
            for news in self._sightings.manifest_news.get(event.line, ()):
                self._subject.learn_of_manifest(news)
            for order in self._plan.before.get(event.line, ()):
                self._hear_before(event)
                if isinstance(order, Write):
                    self._look_before(order.vbucket, order.items[0].seqno, event)
                elif isinstance(order, SetUp):
                    self._send_before(order.vbucket, event)
                self._carry_out(order, event)
            if event.connection is None:
                continue
            played = self._played.get(event.connection)
            if played is None:
                name = self._conversation.names[event.connection]
                played = self._played[event.connection] = PlayedConnection(
                    event.connection,
                    name,
                    self._subject.connect(),
                    ClientPart(self._sightings),
                )
            if not played.failure:
                self._take(played, event)
        for played in self._played.values():
            played.line.close()
            failures = (played.failure,) if played.failure else ()
            yield CaseResult(played.name, failures, {"compared": played.compared})

    def _take(self, played: PlayedConnection, event: Event) -> None:
        if event.after_silence and event.kind is not Kind.SERVER:
            self._require_silence(played, event)
        if event.kind is Kind.CLIENT:
            parts = [Said(event, frame.to_bytes(), frame) for frame in event.frames]
            if b"".join(part.data for part in parts) != event.data:
                parts = [Said(event, event.data, None)]
            played.said.extend(parts)
        elif event.kind is Kind.SERVER:
            self._expect(played, event)
        elif event.kind is Kind.CLOSED_BY_SERVER:
            self._require_read(played)
            self._expect_close(played, event)
            played.line.close()
        else:
            self._require_read(played)
            played.line.close()

    def _carry_out(self, order: Order, event: Event) -> None:
        if isinstance(order, HandOver):
            self._hand_over(order, event)
            return
        try:
            self._subject.carry_out(order)
        except LocalProtocolError as error:  # it has other seqnos, by what the client wrote
            for played in self._played.values():
                played.failure = played.failure or f"before line {event.line}: {error}"

    def _hand_over(self, order: HandOver, event: Event) -> None:
        """Let the client's requests be heard up to a write, whose effect others were shown."""
        for played in self._played.values():
            waits = (one for one in played.said if one.frame is not None)
            if order.request not in {
                (one.event.line, one.frame.opaque) for one in waits if one.frame
            }:
                continue
            heard = None
            while heard != order.request:
                one = played.said[0]
                heard = one.event.line, one.frame.opaque if one.frame is not None else -1
                self._say(played, event.seconds)

    def _hear_before(self, event: Event) -> None:
        """Let what clients asked before this line be heard, whenever they read the answers.

        Writes wait for their turn: they come at their seqnos. Acknowledgements wait for what they
        acknowledge.
        """
        for played in self._played.values():
            while not self._waits(played.said):
                self._say(played, event.seconds)

    def _waits(self, said: Iterable[Said]) -> bool:
        for one in said:
            if self._is_write(one):
                return True
            if one.frame is None or one.frame.opcode not in _NEVER_ANSWERED:
                return False
        return True

    def _is_write(self, said: Said) -> bool:
        frame = said.frame
        return frame is not None and (said.event.line, frame.opaque) in self._plan.requested

    def _send_before(self, vbucket: int, event: Event) -> None:
        """Let streams send what their clients are recorded to read later, before they end."""
        for (connection, stream_id), lines in self._sightings.stream_lines.get(vbucket, {}).items():
            played = self._played.get(connection)
            first = bisect_left(lines, event.line, key=lambda seen: seen[0])
            later = [key for _, key in lines[first:] if key[0] < event.line]
            if played is None or not later:
                continue
            channel = "stream", vbucket, stream_id
            while len(played.received.get(channel, ())) < len(later):
                if not self._receive(played, event.seconds, channel):
                    break

    def _look_before(self, vbucket: int, seqno: int, event: Event) -> None:
        """Let streams form the snapshots in which a seqno is not yet, before it comes.

        Those are the streams whose next marker, though recorded later, ends below it: the server
        had sent it, the client read other connections first.
        """
        for (connection, _), markers in self._markers.get(vbucket, {}).items():
            played = self._played.get(connection)
            index = bisect_left(markers, event.line, key=lambda marker: marker.line)
            if played is None or index == len(markers) or markers[index].end >= seqno:
                continue
            while played.said:
                self._say(played, event.seconds)
            self._send_as_recorded(played, event, forms_any=False)
            channel = "stream", vbucket, markers[index].stream_id
            while self._receive(played, event.seconds, channel):
                pass

    # --- the client's part

    def _say(self, played: PlayedConnection, now: float) -> None:
        """Hand over the next of what the client said."""
        one = played.said.popleft()
        data = one.data
        if one.frame is not None and played.part.is_unheard(one.event.line, one.frame):
            return
        if one.frame is not None:
            data = played.part.adapted(one.event.line, one.frame).to_bytes()
            written = self._plan.requested.get((one.event.line, one.frame.opaque))
            if written is not None:
                self._look_before(one.frame.vbucket, written.item.seqno, one.event)
                self._subject.align(one.frame.vbucket, written)
        played.line.send(data, now)
        self._subject.spread()
        if one.frame is not None and self._is_from_disk(one.event, one.frame):
            played.line.send_to_disk(one.frame)

    def _is_from_disk(self, event: Event, frame: Frame) -> bool:
        """Whether the frame asks for a stream whose first snapshot came from the server's disk."""
        asks = not frame.magic.is_response and frame.opcode == Opcode.DCP_STREAM_REQ
        return asks and (event.line, frame.vbucket, frame.opaque) in self._sightings.from_disk

    # --- the server's part

    def _expect(self, played: PlayedConnection, event: Event) -> None:
        recorded = event.frames[0]
        if played.part.is_unheard(event.line, recorded):
            return
        if self._is_unread_passed_over(played, recorded):
            self._require_read(played)
            return
        if recorded.opcode == Opcode.STAT and recorded.opaque in played.statistics:
            self._compare_statistic(played, event, played.statistics[recorded.opaque])
            return
        channel = channel_of(recorded)
        if channel[0] == "answer" and played.statistics:
            played.failure = f"before line {event.line}: found the end of a list of statistics"
            return
        ours = self._next(played, channel, event)
        where = f"line {event.line}: {name_of(recorded)}"
        if ours is None:
            others = [name_of(frame) for waiting in played.received.values() for frame in waiting]
            closed = "the connection closed" if played.line.is_closed else "nothing"
            played.failure = f"{where}: found {', '.join(others[:3]) or closed}, expected it"
            return
        if recorded.opcode == Opcode.STAT and recorded.magic.is_response and not recorded.status:
            self._compare_statistic(played, event, self._list_from(played, ours, event))
            return
        faults = list(differences(ours, recorded))
        if faults:
            what = "" if name_of(ours) == name_of(recorded) else f" (found {name_of(ours)})"
            played.failure = f"{where}{what}: {'; '.join(faults)}"
            return
        played.compared += 1
        if event.line in self._sightings.left_out:
            played.left_out.add(channel)
        if recorded.opcode == Opcode.DCP_OSO_SNAPSHOT and not recorded.magic.is_response:
            played.out_of_order.add(recorded.opaque)
        if recorded.opcode == Opcode.DCP_NOOP and not recorded.magic.is_response:
            played.part.noops[recorded.opaque] = ours.opaque
        if ours.magic.is_response and ours.status == Status.AUTH_CONTINUE and played.part.scram:
            try:
                played.part.scram = played.part.scram.answer(ours.value)
            except AuthenticationError as error:
                played.failure = f"{where}: {error}"

    def _list_from(self, played: PlayedConnection, first: Frame, event: Event) -> list[Frame]:
        """Return our whole list of statistics; it ends with an empty answer or is a refusal."""
        found = [first]
        while found[-1].key:
            more = self._next(played, channel_of(first), event)
            if more is None:
                break
            found.append(more)
        played.statistics[first.opaque] = found
        return found

    def _compare_statistic(self, played: PlayedConnection, event: Event, ours: list[Frame]) -> None:
        recorded = event.frames[0]
        if not recorded.key:
            del played.statistics[recorded.opaque]
        if ours[-1].status == Status.KEY_ENOENT:  # a group of the server's own
            return
        faults = difference_of({frame.key: frame for frame in ours}, ours[-1], recorded)
        if faults:
            played.failure = f"line {event.line}: {name_of(recorded)}: {'; '.join(faults)}"
        else:
            played.compared += 1

    def _next(self, played: PlayedConnection, channel: Channel, event: Event) -> Frame | None:
        """Return our next frame on a channel, handing over what the client said as needed."""
        while True:
            waiting = played.received.get(channel)
            while waiting and channel in played.left_out and waiting[0].opcode in _ITEMS:
                waiting.popleft()
            if waiting:
                return waiting.popleft()
            if self._receive(played, event.seconds, channel):
                continue
            if played.said:
                self._say(played, event.seconds)
                continue
            due = played.line.due_seconds(event.seconds)
            is_noop = channel == ("begun", Opcode.DCP_NOOP, None)
            if not is_noop or due is None or due > event.seconds + NOOP_SLACK_SECONDS:
                return None
            if not self._receive(played, due, channel):
                return None

    def _receive(
        self, played: PlayedConnection, now: float, channel: Channel | None = None
    ) -> bool:
        """Take what our producer sends next, on any channel or up to one; whether it did."""
        kind, vbucket, stream_id = channel or ("any", 0, None)
        if kind == "stream":
            frames = played.line.next_message_of(vbucket, stream_id, now)
        else:
            line = played.line
            frames = line.next_message(now) if kind == "any" else line.answers(now)
        played.keep(frames)
        return bool(frames)

    def _require_silence(self, played: PlayedConnection, event: Event) -> None:
        """All was said and done before the silence: what of ours is left now is read next."""
        while played.said:
            self._say(played, event.seconds)
        self._send_as_recorded(played, event)
        while self._receive(played, event.seconds):
            pass
        left = [
            frame
            for channel, waiting in played.received.items()
            for frame in waiting
            if channel[1] != Opcode.DCP_NOOP  # a NOOP's time is the server's own
            and not (channel in played.left_out and frame.opcode in _ITEMS)
            # Behind an out-of-order snapshot a 7.0 server forgets the end until the next write.
            and not (frame.opcode == Opcode.DCP_STREAM_END and frame.opaque in played.out_of_order)
        ]
        played.has_silent_list = bool(played.statistics)
        played.unread = left
        played.unread_fault = (
            f"before line {event.line}: found {', '.join(name_of(frame) for frame in left[:3])}"
            f"{f' and {len(left) - 3} more' if len(left) > 3 else ''}, expected silence"
        )

    def _send_as_recorded(
        self, played: PlayedConnection, event: Event, *, forms_any: bool = True
    ) -> None:
        """Let streams send in the order in which the client reads it later.

        A full window holds back all, so it matters which of them was first. Unless it ``forms_any``
        this ends before a snapshot with another end than it would have now.
        """
        wanted: Counter[Channel] = Counter()
        lines = self._server_lines[played.index]
        for line, channel in lines[bisect_left(lines, event.line, key=lambda one: one[0]) :]:
            wanted[channel] += 1
            end = self._marker_ends.get(line)
            is_due = len(played.received.get(channel, ())) < wanted[channel]
            is_other = end is not None and end != self._subject.high_seqno(channel[1])
            if is_due and is_other and not forms_any:
                return
            while len(played.received.get(channel, ())) < wanted[channel]:
                if not self._receive(played, event.seconds, channel):
                    return

    def _is_unread_passed_over(self, played: PlayedConnection, recorded: Frame) -> bool:
        """Whether the client reads something else first than what was sent before a silence."""
        if not played.unread:
            return False
        waiting = played.received.get(channel_of(recorded))
        if is_of_the_server(recorded) and waiting:  # a NOOP's time is the server's own
            return any(
                played.order[id(one)] < played.order[id(waiting[0])] for one in played.unread
            )
        kept = [frame for frame in played.unread if not waiting or frame is not waiting[0]]
        is_passed_over = len(kept) == len(played.unread)
        played.unread = kept
        return is_passed_over

    def _require_read(self, played: PlayedConnection) -> None:
        """What was sent before a silence was read by now."""
        if played.unread:
            played.failure = played.failure or played.unread_fault
        elif played.has_silent_list and played.statistics:
            played.failure = played.failure or "at the end: found the end of a list of statistics"

    def _expect_close(self, played: PlayedConnection, event: Event) -> None:
        """The server closed: so must ours, if it was for what the client said or did not say."""
        unanswered = bool(played.said) and played.said[-1].frame is None
        while played.said:
            one = played.said[0].frame
            unanswered |= one is not None and one.opcode not in _NEVER_ANSWERED
            self._say(played, event.seconds)
        while self._receive(played, event.seconds):
            pass
        owes_noop = bool(played.part.noops) and self._sightings.idle_timeout_seconds is not None
        if not played.line.is_closed and (unanswered or owes_noop):
            played.failure = f"line {event.line}: found an open connection, expected it closed"
