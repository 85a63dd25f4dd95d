"""The state that a recording shows: what a drafted scenario is made of, gathered line by line."""

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from dcp.errors import FrameError
from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, SnapshotFlag, Status
from tests.conformance_formats.transcripts import CLOSED, FrameLine, MarkLine
from tests.producer_conformance.drafted_item import item_of
from tests.producer_conformance.drafted_vbucket import DraftedVbucket, Raw

_YOUNGER_FEATURES: Final = frozenset(
    {
        HelloFeature.GET_CLUSTER_CONFIG_WITH_GIVEN_VERSION,
        HelloFeature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
        HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
    }
)
"""Those came with 7.6: an older server does not grant them."""
_YOUNGER_CONTROLS: Final = frozenset(
    {b"max_marker_version", b"flatbuffers_system_events", b"change_streams", b"cache_transfer"}
)
"""Those came with 7.2 and later: an older server's refusal is no example to follow."""
_LOGS: Final = (Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG)


@dataclass(slots=True)
class _Stream:
    """A stream: where it was asked for, and from which line what it shows was there."""

    asked: int
    is_in_memory: bool = False
    there: int = 0


@dataclass(slots=True)
class _Connection:
    """A connection: its unanswered requests by their opaques, and its streams by theirs."""

    name: str
    asked: dict[int, tuple[int, Frame]] = field(default_factory=dict)
    streams: dict[int, _Stream] = field(default_factory=dict)
    has_collections: bool = False
    is_compressed: bool = False
    user: str = ""
    login_line: int = 0
    splitter: FrameSplitter = field(default_factory=FrameSplitter)


class Drafter:
    """Goes through the lines once."""

    def __init__(self) -> None:
        self.raw: Raw = {"bucket": "default", "vbuckets": 0, "users": {}}
        self.wrong_passwords: list[int] = []
        self.manifests: list[Raw] = []
        self.without_streams: set[str] = set()
        self.unplayed: list[int] = []
        self.bucket_of: dict[str, str] = {}
        self.from_disk: set[int] = set()
        self.younger: set[int] = set()
        self.vbuckets: dict[int, DraftedVbucket] = defaultdict(DraftedVbucket)
        self.not_held: set[int] = set()
        self._open: dict[str, _Connection] = {}

    def take(self, line: FrameLine | MarkLine) -> None:
        """Take the next line."""
        if isinstance(line, MarkLine):
            closed = CLOSED.fullmatch(line.text)
            if closed:
                self._open.pop(closed["conn"], None)
            return
        one = self._open.setdefault(line.conn, _Connection(line.conn))
        if not line.from_server:
            try:
                block = one.splitter.feed(line.data)
            except FrameError:
                return
            for index in range(len(block)):
                frame = block.frame(index)
                one.asked[frame.opaque] = line.number, frame
            return
        # What cannot be read tells nothing here; the comparison tells of it.
        with suppress(FrameError, ValueError):
            self._take_server(one, line.number, parse_frame(line.data))

    def _take_server(self, one: _Connection, line: int, frame: Frame) -> None:
        body = decode(frame)
        if not frame.magic.is_response:
            self._take_message(one, line, frame, body)
        elif frame.opaque in one.asked:
            asked_line, request = one.asked[frame.opaque]
            self._take_answer(one, asked_line, request, frame, body)
            is_control = request.opcode == Opcode.DCP_CONTROL
            if is_control and request.key in _YOUNGER_CONTROLS and frame.status == Status.EINVAL:
                self.unplayed += [asked_line, line]

    def finish(self) -> Raw:
        """Return a bucket's scenario, as its file has it."""
        known = [number for number, about in self.vbuckets.items() if about.logs or about.listed]
        self.raw["vbuckets"] = self.raw["vbuckets"] or max([*known, *self.not_held], default=0) + 1
        is_listed = any(about.listed for about in self.vbuckets.values())
        others = range(self.raw["vbuckets"]) if is_listed else self.not_held
        missing = {*others}.difference(known)
        steps = list(self.manifests)
        for number in sorted(known):
            steps += self.vbuckets[number].steps(number)
        held = [number for number in range(self.raw["vbuckets"]) if number not in missing]
        return self.raw | {
            "users_without_streams": sorted(self.without_streams),
            "wrong_passwords": self.wrong_passwords,
            "held": held if missing else None,
            "streams_from_disk": sorted(self.from_disk),
            "unplayed": self.unplayed,
            "younger_features": sorted(self.younger),
            "steps": sorted(steps, key=lambda step: int(step["before"])),
        }

    def _take_answer(
        self, one: _Connection, line: int, request: Frame, answer: Frame, body: m.Body
    ) -> None:
        asked = decode(request)
        match asked, body:
            case m.Hello(), m.HelloAnswer():
                one.has_collections = HelloFeature.COLLECTIONS in body.features
                self.younger |= _YOUNGER_FEATURES.intersection(asked.features) - {*body.features}
            case m.Sasl(), _:
                self._take_login(one, line, request, answer)
            case m.DcpControl(), _ if request.key == b"force_value_compression":
                one.is_compressed = request.value == b"true"
            case m.SelectBucket(), _ if answer.status == Status.SUCCESS:
                self.raw["bucket"] = self.bucket_of[one.name] = asked.bucket.decode()
            case m.GetAllVbSeqnos(), m.AllVbSeqnos() if asked.collection is None:
                for number, seqno in body.seqnos:
                    self.vbuckets[number].listed.append(line)
                    self._guess(number, line, line, seqno)
            case m.StreamRequest(), m.RollbackAnswer():
                self._guess(request.vbucket, line, line, body.rollback_seqno)
            case m.DcpOpen(), _ if answer.status == Status.EACCESS:
                self.without_streams.add(one.user)
            case _, m.FailoverLogAnswer() if request.opcode in _LOGS:
                self.vbuckets[request.vbucket].logs.append((line, FailoverLog(body.entries)))
                if isinstance(asked, m.StreamRequest):
                    one.streams[request.opaque] = _Stream(line, there=line)
                    self._guess(request.vbucket, line, line, asked.start)
        is_manifest = request.opcode == Opcode.GET_COLLECTIONS_MANIFEST
        if is_manifest and answer.status == Status.SUCCESS:
            manifest = json.loads(answer.value)
            self.manifests.append({"before": line, "do": "learn_manifest", "manifest": manifest})
        if answer.status == Status.NOT_MY_VBUCKET:
            self.not_held.add(request.vbucket)
        self._take_map(answer.value)

    def _take_map(self, value: bytes) -> None:
        if b'"vBucketMap"' in value:
            found = json.loads(value)["vBucketServerMap"]["vBucketMap"]
            self.raw["vbuckets"] = max(self.raw["vbuckets"], len(found))

    def _take_login(self, one: _Connection, line: int, request: Frame, answer: Frame) -> None:
        if request.opcode == Opcode.SASL_AUTH:
            one.login_line = line
            parts = request.value.decode("utf-8", "replace").split("\0")
            if request.key == b"PLAIN" and answer.status == Status.SUCCESS:
                one.user = parts[1]
                self.raw["users"][one.user] = parts[2]
            elif answer.status == Status.AUTH_CONTINUE:  # who it is, but not the password
                one.user = parts[0].partition(",n=")[2].partition(",")[0]
                self.raw["users"].setdefault(one.user, "unknown")
        elif answer.status == Status.AUTH_ERROR:
            self.wrong_passwords.append(one.login_line)

    def _guess(self, number: int, asked: int, line: int, seqno: int) -> None:
        """Let something be at a seqno that perhaps nobody is shown."""
        if seqno:
            item = {"seqno": seqno, "is": "prepare", "key": f"unseen {seqno}"}
            self.vbuckets[number].seen.append((asked, line, item))

    def _take_message(self, one: _Connection, line: int, frame: Frame, body: m.Body) -> None:
        stream = one.streams.get(frame.opaque)
        if frame.magic is Magic.SERVER_REQUEST:
            self._take_map(frame.value)
        if stream is None:
            return
        about = self.vbuckets[frame.vbucket]
        if isinstance(body, m.SnapshotMarker):
            is_disk = bool(body.flags & SnapshotFlag.DISK)
            if is_disk and not stream.is_in_memory:
                self.from_disk.add(stream.asked)
            elif stream.is_in_memory:
                stream.there = line
                if body.flags & SnapshotFlag.CHECKPOINT:
                    about.checkpoints.add(line)
            stream.is_in_memory = True
            self._guess(frame.vbucket, stream.asked, stream.there, body.end)
        elif isinstance(body, m.OsoSnapshot):
            self.from_disk.add(stream.asked)
        elif isinstance(body, m.SeqnoAdvanced):
            self._guess(frame.vbucket, stream.asked, stream.there, body.seqno)
        else:
            item = item_of(frame, body, has_collections=one.has_collections)
            if item and not (one.is_compressed and item["seqno"] in about.shown):
                about.shown.add(item["seqno"])
                about.seen.append((stream.asked, stream.there, item))
