"""Stream requests that a real server was asked, asked again of our producer in the same state.

Each recorded conversation with a stream request is repeated word for word, but for the uuids of the
real server's branches, which become those of ours. Every answer to a stream request must be the
recorded one, field by field. Exceptions, each with its reason:

    NOT_MY_VBUCKET        the value is a cluster map: that of another cluster. Ours must be one too.
    EINVAL, malformed     the context is a text for people; ours says what was found as well.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.failover import VbucketFacts
from dcp.producer.settings import ClusterSettings
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode, Status, VbucketState
from tests.conformance_formats.case_file import CaseFile
from tests.conformance_formats.transcripts import FrameLine, MarkLine, parse_line
from tests.producer.raw_client import RawClient

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
REQUEST_FIELDS = ("magic", "opcode", "vbucket_or_status", "opaque", "cas", "datatype", "extras")
MALFORMED = b'{"error":{"context":"Request must '


def lines_of(name: str) -> list[FrameLine | MarkLine]:
    file = CaseFile.read(CAPTURES / name)
    return [parse_line(number, line) for number, line in enumerate(file.content)]


def frames_of(line: FrameLine) -> list[Frame]:
    block = FrameSplitter().feed(line.data)
    return [block.frame(index) for index in range(len(block))]


def is_stream_request(line: FrameLine | MarkLine) -> bool:
    opcode_at = 1
    return isinstance(line, FrameLine) and line.data[opcode_at] == Opcode.DCP_STREAM_REQ


def conversations(lines: list[FrameLine | MarkLine]) -> Iterator[list[FrameLine | MarkLine]]:
    """Yield each connection's lines up to its last stream request's answer, with other marks."""
    parts: dict[str, list[FrameLine | MarkLine]] = {}
    for line in lines:
        if isinstance(line, FrameLine):
            parts.setdefault(line.conn, []).append(line)
            continue
        name, _, rest = line.text.partition(": ")
        if rest in ("client closes", "server closed connection"):
            part = parts.pop(name, [])
            asked = [index for index, each in enumerate(part) if is_stream_request(each)]
            if asked:
                yield part[: asked[-1] + 1]
        else:
            for part in parts.values():
                part.append(line)


@dataclass
class Replay:
    """One recording against one producer; counts the answers that it compared."""

    cluster: ProducerCluster
    at_mark: Callable[[ProducerCluster, str], None]
    uuids: dict[int, int] = field(default_factory=dict)
    compared: int = 0

    def run(self, part: list[FrameLine | MarkLine]) -> None:
        with RawClient(self.cluster.seeds[0]) as client:
            for line in part:
                if isinstance(line, MarkLine):
                    self.at_mark(self.cluster, line.text)
                elif not line.from_server:
                    client.send(*map(self._with_our_uuid, frames_of(line)))
                else:
                    for recorded in frames_of(line):
                        if recorded.magic.is_response:
                            self._compare(line.number, recorded, client.answer())

    def _with_our_uuid(self, frame: Frame) -> Frame:
        if frame.opcode != Opcode.DCP_STREAM_REQ or len(frame.extras) != 48 or frame.key:
            return frame
        body = decode(frame)
        assert isinstance(body, m.StreamRequest)
        ours = self.uuids.get(body.vb_uuid, body.vb_uuid)
        changed = m.StreamRequest(
            body.flags, body.start, body.end, ours, body.snap_start, body.snap_end, body.value
        )
        return encode(changed, frame.opcode, vbucket=frame.vbucket, opaque=frame.opaque)

    def _compare(self, number: int, recorded: Frame, answer: Frame) -> None:
        if recorded.opcode != Opcode.DCP_STREAM_REQ:
            assert answer.opcode == recorded.opcode, f"line {number}"
            return
        self.compared += 1
        for name in REQUEST_FIELDS:
            found, expected = getattr(answer, name), getattr(recorded, name)
            assert found == expected, f"line {number}: {name}"
        if recorded.status == Status.NOT_MY_VBUCKET:
            assert "vBucketServerMap" in json.loads(answer.value), f"line {number}"
        elif recorded.status == Status.EINVAL and recorded.value.startswith(MALFORMED):
            assert json.loads(answer.value)["error"]["context"], f"line {number}"
        elif recorded.status == Status.SUCCESS:
            self._compare_logs(number, decode(recorded), decode(answer))
        else:
            assert answer.value == recorded.value, f"line {number}"

    def _compare_logs(self, number: int, recorded: m.Body, answer: m.Body) -> None:
        assert isinstance(recorded, m.FailoverLogAnswer)
        assert isinstance(answer, m.FailoverLogAnswer)
        seqnos = [entry.seqno for entry in recorded.entries]
        assert [entry.seqno for entry in answer.entries] == seqnos, f"line {number}"
        for theirs, ours in zip(recorded.entries, answer.entries, strict=True):
            known = self.uuids.setdefault(theirs.vb_uuid, ours.vb_uuid)
            assert known == ours.vb_uuid, f"line {number}: uuid of {theirs}"
        assert len(set(self.uuids.values())) == len(self.uuids)


def _settings(vbuckets: int) -> ClusterSettings:
    return ClusterSettings(vbuckets=vbuckets, seed=6, rules="server")


def _nothing(_: ProducerCluster, mark: str) -> None:
    raise AssertionError(f"mark {mark!r}: nothing known of it")


def test_rollback_answers() -> None:
    lines = lines_of("06-rollback.jsonl")
    with ProducerCluster(_settings(1)) as cluster:
        replay = Replay(cluster, _nothing)
        for number in range(20):
            cluster.set(b"a%02d" % number, b"{}")
        for part in conversations(lines):
            assert isinstance(part[0], FrameLine)
            if part[0].conn == "c14":  # set to replica and active again, then 10 documents
                cluster.set_vbucket_state(0, VbucketState.REPLICA)
                cluster.set_vbucket_state(0, VbucketState.ACTIVE)
                for number in range(10):
                    cluster.set(b"b%02d" % number, b"{}")
            if part[0].conn == "c23":  # 8 deletions, 12 documents, compaction
                for number in range(8):
                    cluster.delete(b"a%02d" % number)
                for number in range(12):
                    cluster.set(b"p%02d" % number, b"{}")
                cluster.purge_tombstones(0)
                assert (cluster.purge_seqno(0), cluster.high_seqno(0)) == (38, 50)
            replay.run(part)
    assert replay.compared == 29
    assert len(replay.uuids) == 2


def _change_vbucket(cluster: ProducerCluster, mark: str) -> None:
    if mark == "vb 0 deleted":  # and made again
        log = FailoverLog((FailoverEntry(cluster.failover_log(0).current_uuid ^ 1, 0),))
        cluster.set_up_vbucket(0, VbucketFacts(log, 0))
        return
    state = {"vb 0 set to replica": VbucketState.REPLICA, "vb 0 set to dead": VbucketState.DEAD}
    cluster.set_vbucket_state(0, state[mark])
    cluster.set_vbucket_state(0, VbucketState.ACTIVE)  # the recorder did, before it asked again


def test_errors() -> None:
    lines = lines_of("08-errors.jsonl")
    with ProducerCluster(_settings(64)) as cluster:
        keys = (key for n in range(10_000) if cluster.vbucket_of(key := b"a%d" % n) == 0)
        for _ in range(5):
            cluster.set(next(keys), b"{}")
        cluster.set_vbucket_state(2, VbucketState.REPLICA)
        for missing in (3, 9):
            cluster.set_vbucket_state(missing, VbucketState.DEAD)
        replay = Replay(cluster, _change_vbucket)
        for part in conversations(lines):
            replay.run(part)
    assert replay.compared == 24


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    part = next(conversations(lines_of("06-rollback.jsonl")))
    with ProducerCluster(_settings(1)) as cluster:
        cluster.crash_restart(0)
        with pytest.raises(AssertionError, match="line 15"):
            Replay(cluster, _nothing).run(part)
