"""Reading sightings out of a conversation: what each of the server's frames says of its state."""

import json
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dcp.errors import FrameError
from dcp.producer.model.manifest import DEFAULT_ID
from dcp.producer.model.settings import MAX_VBUCKETS
from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_of
from dcp.wire.vocabulary import (
    EndReason,
    HelloFeature,
    Magic,
    Opcode,
    OsoFlag,
    Status,
    StreamFlag,
    VbucketState,
)
from tests.producer_conformance.conversation import Conversation, Event, Kind
from tests.producer_conformance.document_sightings import WRITES, take_document_answer
from tests.producer_conformance.manifest_news import news_in
from tests.producer_conformance.sightings import (
    ANY_STATE,
    MISSING,
    STREAMABLE,
    Marker,
    Sightings,
    What,
)
from tests.producer_conformance.statistics import take_statistics
from tests.producer_conformance.unseen_collections import FILTER_WAS_TAKEN, named_by
from tests.producer_conformance.watched_connection import WatchedConnection
from tests.producer_conformance.watched_stream import WatchedStream, held_by, item_of

_LEAST_IDLE_SECONDS: Final = 4.0
"""A connection that ends after a shorter silence ends for another reason."""
_SCRAM_USER: Final = re.compile(rb"n,,n=([^,]*),r=")
_OF_ANY_STATE: Final = frozenset({Opcode.DCP_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG})
_UNHEARD_CONTROLS: Final[dict[int, frozenset[bytes]]] = {
    Status.EINVAL: frozenset(
        {b"max_marker_version", b"flatbuffers_system_events", b"change_streams", b"cache_transfer"}
    ),
    Status.SUCCESS: frozenset({b"con"}),
}
"""What an older server says to some controls is no example to follow. Those that are refused came
with 7.2 and later; the other is none, but of a key it compared only the bytes that were there
(kv_engine 7.0 ``engines/ep/src/dcp/producer.cc``, strncmp).
"""
_YOUNGER_FEATURES: Final = frozenset(
    {
        HelloFeature.GET_CLUSTER_CONFIG_WITH_GIVEN_VERSION,
        HelloFeature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
    }
)
"""Those came with 7.6: an older server does not grant them."""
_UIDS_OF_A_PLAIN_MANIFEST: Final = 3
"""Its own, the default scope's, and that of the default collection."""
_PAUSES: Final = frozenset({Kind.MARK, Kind.CLIENT})
"""What may lie between a stream's beginning and its first marker if it had to wait for a write."""


def watch(conversation: Conversation) -> Sightings:
    """Return what the conversation shows of the server's state."""
    watcher = _Watcher(len(conversation.names))
    for event in conversation.events:
        watcher.take(event)
    return watcher.finish()


class _Watcher:
    """Goes through the events once."""

    def __init__(self, connections: int) -> None:
        self.seen = Sightings()
        self._connections = [WatchedConnection() for _ in range(connections)]
        self._last_pause = 0
        self._line = self._connection = 0
        self._was_silent = False
        self._idle: list[float] = []

    def finish(self) -> Sightings:
        patience = max((one.longest_silence_seconds for one in self._connections), default=0.0)
        if self._idle:
            self.seen.idle_timeout_seconds = max(patience, min(self._idle))
        if not self.seen.vbucket_count:  # no map was seen
            most = max(self.seen.vbuckets, default=0) + 1
            self.seen.vbucket_count = min(most, MAX_VBUCKETS)
        return self.seen

    def take(self, event: Event) -> None:
        self._line, self._was_silent = event.line, event.after_silence
        self._connection = event.connection or 0
        if event.kind in _PAUSES:
            self._last_pause = event.line
        if event.connection is None:
            return
        one = self._connections[event.connection]
        if event.after_silence:
            one.silences.append(event.line)
        if event.kind in (Kind.CLOSED_BY_CLIENT, Kind.CLOSED_BY_SERVER):
            for stream in one.streams.values():
                stream.close(event.line)
            one.streams.clear()
        if event.kind is Kind.CLOSED_BY_SERVER:
            self._refused_unanswered(one)
        if event.kind is Kind.CLIENT:
            self._take_client(one, event)
        elif event.kind is Kind.SERVER:
            # What cannot be read tells nothing of the state; the comparison will tell of it.
            with suppress(FrameError, ValueError):
                self._take_server(one, event.frames[0])
        elif event.kind is Kind.CLOSED_BY_SERVER and one.noop_unanswered:
            silence = event.seconds - one.heard_seconds
            if silence >= _LEAST_IDLE_SECONDS:
                self._idle.append(silence)

    def _refused_unanswered(self, one: WatchedConnection) -> None:
        """Take a DCP_OPEN that ended the connection of a client without XERROR: EACCESS."""
        asked = (frame for waiting in one.asked.values() for _, frame in waiting)
        opens = any(frame.opcode == Opcode.DCP_OPEN for frame in asked)
        if opens and one.user and one.has_bucket and HelloFeature.XERROR not in one.features:
            self.seen.without_streams.add(one.user.decode())

    # --- the client

    def _take_client(self, one: WatchedConnection, event: Event) -> None:
        if one.heard_seconds and one.noop_unanswered:
            silence = event.seconds - one.heard_seconds
            one.longest_silence_seconds = max(one.longest_silence_seconds, silence)
        one.heard_seconds = event.seconds
        for frame in event.frames:
            if frame.magic.is_response:
                one.noop_unanswered = one.noop_unanswered and frame.opcode != Opcode.DCP_NOOP
            else:
                one.asked[frame.opaque].append((event.line, frame))

    # --- the server

    def _take_server(self, one: WatchedConnection, frame: Frame) -> None:
        body = decode(frame)
        if frame.magic.is_response:
            waiting = one.asked.get(frame.opaque) or deque()
            asked = next((ask for ask in waiting if ask[1].opcode == frame.opcode), None)
            if asked is not None:
                if frame.opcode != Opcode.STAT or frame.status or not frame.key:
                    waiting.remove(asked)
                if frame.status != Status.UNKNOWN_COMMAND:
                    self.seen.known_commands.add((asked[0], frame.opaque))
                news = news_in(asked[1], frame, body)
                if news is not None:
                    self.seen.manifest_news.setdefault(asked[0], []).append(news)
                self._take_answer(one, asked, frame, body)
        elif frame.opcode == Opcode.DCP_NOOP:
            one.noop_unanswered = True
        else:
            self._take_message(one, frame, body)

    def _take_answer(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, body: m.Body
    ) -> None:
        line, request = asked
        if frame.status == Status.NOT_MY_VBUCKET:
            self._take_map(frame.value)
            self._not_held(line, request)
            return
        take = _ANSWERS.get(request.opcode)
        if take is not None:
            take(self, one, asked, frame, body)

    def _not_held(self, line: int, request: Frame) -> None:
        states = ANY_STATE - STREAMABLE
        if request.opcode in (*WRITES, Opcode.GET):
            states = ANY_STATE - {VbucketState.ACTIVE}
        if request.opcode in _OF_ANY_STATE:
            states = MISSING
        if request.opcode == Opcode.DCP_STREAM_REQ:
            asked = decode(request)
            if isinstance(asked, m.StreamRequest) and asked.flags & StreamFlag.ACTIVE_VB_ONLY:
                states = ANY_STATE - {VbucketState.ACTIVE}
        self.seen.vbucket(request.vbucket).states.append((line, states))

    def _take_map(self, value: bytes) -> None:
        try:
            found = json.loads(value)["vBucketServerMap"]["vBucketMap"]
        except (ValueError, KeyError, TypeError):
            return
        self.seen.vbucket_count = max(self.seen.vbucket_count, len(found))

    def _hello(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, body: m.Body
    ) -> None:
        wanted = decode(asked[1])
        if isinstance(body, m.HelloAnswer) and isinstance(wanted, m.Hello):
            one.features = frozenset(body.features)
            in_vain = _YOUNGER_FEATURES.intersection(wanted.features) - one.features
            self.seen.unheard_features[asked[0], frame.opaque] = in_vain

    def _sasl(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, _: m.Body
    ) -> None:
        request = asked[1]
        first = _SCRAM_USER.match(request.value)
        if request.key == b"PLAIN" and request.value.count(b"\0") == 2:
            user, password = request.value.split(b"\0")[1:]
            if frame.status == Status.SUCCESS:
                self.seen.logins[user.decode()] = password.decode()
                one.user = user
        elif first is not None:
            one.user = first[1]
        if request.opcode == Opcode.SASL_AUTH:
            one.login_line = asked[0]
        elif frame.status == Status.SUCCESS:
            self.seen.logins.setdefault(one.user.decode(), "unknown")
        elif frame.status == Status.AUTH_ERROR:
            self.seen.failed_logins.add(one.login_line)

    def _select(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, __: m.Body
    ) -> None:
        name = asked[1].key.decode("utf-8", "replace")
        one.has_bucket |= frame.status == Status.SUCCESS
        if frame.status == Status.SUCCESS and name not in self.seen.buckets:
            self.seen.buckets.append(name)

    def _config(
        self, _: WatchedConnection, asked: tuple[int, Frame], frame: Frame, __: m.Body
    ) -> None:
        self._take_map(frame.value)
        if frame.status == Status.SUCCESS and not frame.value:
            self.seen.known_maps.add((asked[0], frame.opaque))

    def _open(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, _: m.Body
    ) -> None:
        opened = decode(asked[1])
        if isinstance(opened, m.DcpOpen) and frame.status == Status.SUCCESS:
            one.open_flags = opened.flags
        elif frame.status == Status.EACCESS and one.user:
            self.seen.without_streams.add(one.user.decode())

    def _control(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, _: m.Body
    ) -> None:
        if frame.status == Status.SUCCESS and asked[1].value == b"true":
            one.controls.add(asked[1].key)
        if asked[1].key in _UNHEARD_CONTROLS.get(frame.status, ()):
            self.seen.unheard |= {(asked[0], frame.opaque), (self._line, frame.opaque)}

    def _stream(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, body: m.Body
    ) -> None:
        line, request = asked
        wanted = decode(request)
        if not isinstance(wanted, m.StreamRequest):
            return
        about = self.seen.vbucket(request.vbucket)
        about.verdicts.append((line, wanted, frame.status))
        if frame.status in FILTER_WAS_TAKEN:
            self.seen.hides |= any(DEFAULT_ID not in each for each in named_by(wanted.value))
        if frame.status == Status.ROLLBACK and isinstance(body, m.RollbackAnswer):
            about.at_least.append((line, body.rollback_seqno))
            if body.rollback_seqno:
                about.exact.append((line, body.rollback_seqno))
            about.states.append((line, STREAMABLE))
        if frame.status != Status.SUCCESS or not isinstance(body, m.FailoverLogAnswer):
            return
        only_active = wanted.flags & StreamFlag.ACTIVE_VB_ONLY
        about.states.append((line, frozenset({VbucketState.ACTIVE}) if only_active else STREAMABLE))
        about.logs.append((line, FailoverLog(body.entries)))
        about.at_least.append((line, held_by(wanted)))
        is_legacy = HelloFeature.COLLECTIONS not in one.features
        key = line, request.vbucket, frame.opaque
        stream = WatchedStream(about, key, self._line, wanted, is_legacy)
        one.streams[request.vbucket, frame.opaque, _stream_id_in(wanted.value)] = stream

    def _closed(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, _: m.Body
    ) -> None:
        if frame.status == Status.SUCCESS:
            for (vbucket, *_rest), stream in one.streams.items():
                if vbucket == asked[1].vbucket:
                    stream.close(self._line)

    def _log(self, _: WatchedConnection, asked: tuple[int, Frame], __: Frame, body: m.Body) -> None:
        if isinstance(body, m.FailoverLogAnswer):
            log = FailoverLog(body.entries)
            self.seen.vbucket(asked[1].vbucket).logs.append((asked[0], log))

    def _seqnos(
        self, one: WatchedConnection, asked: tuple[int, Frame], _: Frame, body: m.Body
    ) -> None:
        line, request = asked
        wanted = decode(request)
        if not isinstance(body, m.AllVbSeqnos) or not isinstance(wanted, m.GetAllVbSeqnos):
            return
        in_states = ANY_STATE - {VbucketState.DEAD, None}
        if wanted.state:
            in_states = frozenset({VbucketState(wanted.state)})
        listed = dict(body.seqnos)
        for number in range(max(self.seen.vbucket_count, 1 + max(listed, default=-1))):
            states = in_states if number in listed else ANY_STATE - in_states
            self.seen.vbucket(number).states.append((line, states))
        for number, seqno in body.seqnos:
            about = self.seen.vbucket(number)
            about.at_least.append((line, seqno))
            about.exact.append((line, seqno))
            if wanted.collection == 0 or HelloFeature.COLLECTIONS not in one.features:
                about.default_high.append((line, seqno))
            elif wanted.collection is not None:
                about.collection_high.append((line, wanted.collection, seqno))
            else:
                about.visible.append((line, seqno))

    def _observed(
        self, _: WatchedConnection, asked: tuple[int, Frame], __: Frame, body: m.Body
    ) -> None:
        if isinstance(body, m.ObserveSeqnoAnswer):
            about = self.seen.vbucket(asked[1].vbucket)
            about.at_least.append((asked[0], body.current))
            about.exact.append((asked[0], body.current))
            about.unpersisted.append((asked[0], body.current - body.persisted))
            about.uuids.append((asked[0], body.vb_uuid))

    def _document(
        self, one: WatchedConnection, asked: tuple[int, Frame], frame: Frame, _: m.Body
    ) -> None:
        about = self.seen.vbucket(asked[1].vbucket)
        has_collections = HelloFeature.COLLECTIONS in one.features
        take_document_answer(about, asked, frame, self._line, collections=has_collections)
        self.seen.hides |= any(each.item.collection_id for each in about.written[-1:])

    def _manifest(
        self, _: WatchedConnection, asked: tuple[int, Frame], frame: Frame, __: m.Body
    ) -> None:
        if frame.status == Status.SUCCESS:
            self.seen.manifests[asked[0]] = frame.value
            self.seen.hides |= frame.value.count(b'"uid"') > _UIDS_OF_A_PLAIN_MANIFEST

    def _statistic(
        self, one: WatchedConnection, asked: tuple[int, Frame], _: Frame, body: m.Body
    ) -> None:
        if not isinstance(body, m.StatAnswer):
            return
        if body.key:
            one.statistics[body.key] = body.value
        else:
            take_statistics(self.seen, asked[0], one.statistics)
            one.statistics = {}

    # --- streams

    def _take_message(self, one: WatchedConnection, frame: Frame, body: m.Body) -> None:
        if frame.magic is Magic.SERVER_REQUEST:
            self._take_map(frame.value)
            self.seen.map_pushed.add(self._line)
        key = frame.vbucket, frame.opaque, stream_id_of(frame.framing_extras)
        stream = one.streams.get(key)
        if stream is None:
            return
        if not (isinstance(body, m.StreamEnd) and body.reason == EndReason.STATE_CHANGED):
            lines = self.seen.stream_lines.setdefault(frame.vbucket, {})
            lines.setdefault((self._connection, key[2]), []).append((self._line, stream.key))
        if isinstance(body, m.SnapshotMarker):
            marker = Marker(self._line, self._connection, stream.key, key[2], body.end)
            self.seen.markers.setdefault(frame.vbucket, []).append(marker)
            stream.take_marker(
                self._line,
                body,
                self.seen,
                since=self._last_pause,
                after_silence=self._was_silent,
                sent_by=one.sent_by(self._line, frame.vbucket),
            )
        elif isinstance(body, m.OsoSnapshot):
            if body.flags == OsoFlag.START:
                stream.begin_out_of_order(self._line, self.seen)
            else:
                stream.end_out_of_order()
        elif isinstance(body, m.StreamEnd):
            stream.end(self._line, body.reason)
            stream.close(self._line)
            del one.streams[key]
        elif isinstance(body, m.SeqnoAdvanced):
            stream.reach(self._line, body.seqno)
        else:
            has_collections = HelloFeature.COLLECTIONS in one.features
            item = item_of(frame, body, one.quality, collections=has_collections)
            if item is not None:
                stream.show(self._line, item)
                is_plain = item.what is What.DOCUMENT and item.message is None
                self.seen.hides |= not is_plain or bool(item.collection_id)


def _stream_id_in(value: bytes) -> int | None:
    """Return the stream id that a stream request's value names."""
    try:
        found = json.loads(value).get("sid") if value else None
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None


_Answer = Callable[[_Watcher, WatchedConnection, tuple[int, Frame], Frame, m.Body], None]
_ANSWERS: Final[dict[int, _Answer]] = {
    Opcode.HELLO: _Watcher._hello,
    Opcode.SASL_AUTH: _Watcher._sasl,
    Opcode.SASL_STEP: _Watcher._sasl,
    Opcode.SELECT_BUCKET: _Watcher._select,
    Opcode.GET_CLUSTER_CONFIG: _Watcher._config,
    Opcode.DCP_OPEN: _Watcher._open,
    Opcode.DCP_CONTROL: _Watcher._control,
    Opcode.DCP_STREAM_REQ: _Watcher._stream,
    Opcode.DCP_CLOSE_STREAM: _Watcher._closed,
    Opcode.DCP_GET_FAILOVER_LOG: _Watcher._log,
    Opcode.GET_FAILOVER_LOG: _Watcher._log,
    Opcode.GET_ALL_VB_SEQNOS: _Watcher._seqnos,
    Opcode.OBSERVE_SEQNO: _Watcher._observed,
    Opcode.GET_COLLECTIONS_MANIFEST: _Watcher._manifest,
    Opcode.STAT: _Watcher._statistic,
    Opcode.GET: _Watcher._document,
    **dict.fromkeys(WRITES, _Watcher._document),
}
