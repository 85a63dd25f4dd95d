"""Streams of a real server's collections, asked again of our producer in the same state.

Every connection of the recording is repeated word for word, and every message of its streams, as
every answer, must be the recorded one. Exceptions, each with its reason:

    CAS                      a clock's
    failover logs            random uuids
    nru of a mutation        how often the cache saw the document; we have no such cache
"""

from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode, Status
from tests.conformance_formats.case_file import CaseFile
from tests.conformance_formats.transcripts import FrameLine, MarkLine, parse_line
from tests.producer.raw_client import RawClient
from tests.producer.recorded_manifests import DISK

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
NRU_BYTES = 1


def lines_of(name: str) -> list[FrameLine | MarkLine]:
    file = CaseFile.read(CAPTURES / name)
    return [parse_line(number, line) for number, line in enumerate(file.content)]


def frames_of(line: FrameLine) -> list[Frame]:
    block = FrameSplitter().feed(line.data)
    return [block.frame(index) for index in range(len(block))]


def _fill(cluster: ProducerCluster) -> None:
    """Bring vbucket 0 to high seqno 29, as the recorder did."""

    def write(*documents: tuple[bytes, bytes, int]) -> None:
        for key, value, collection in documents:
            cluster.set(key, value, collection=collection)

    cluster.change_manifest(*DISK[0])
    write((b"d0", b'{"d":0}', 0), (b"e0", b'{"e":0}', 8), (b"f0", b'{"f":0}', 9))
    write((b"g0", b'{"g":0}', 0x1F4))
    cluster.change_manifest(*DISK[1])
    write((b"h0", b"{}", 0xA))  # nobody saw it: its collection is gone
    write((b"d1", b'{"d":1}', 0), (b"e1", b'{"e":1}', 8), (b"f1", b'{"f":1}', 9))
    cluster.change_manifest(*DISK[2])
    write(*((b"t%d" % n, b"{}", 0) for n in range(3)))
    write(*((b"z%d" % n, b"{}", 0) for n in range(12)))
    assert cluster.high_seqno(0) == 29


def _told(frame: Frame) -> tuple[object, ...]:
    """What a message must tell."""
    extras = frame.extras
    if frame.opcode == Opcode.DCP_MUTATION:
        extras = extras[:-NRU_BYTES]
    is_log = frame.magic.is_response and frame.opcode == Opcode.DCP_STREAM_REQ
    is_log = is_log and frame.status == Status.SUCCESS
    value = b"" if is_log else frame.value
    return (
        frame.magic,
        Opcode(frame.opcode),
        frame.vbucket_or_status,
        frame.opaque,
        frame.datatype,
        extras,
        frame.key,
        value,
    )


def _connections(name: str) -> dict[str, list[FrameLine]]:
    found: dict[str, list[FrameLine]] = {}
    for line in lines_of(name):
        if isinstance(line, FrameLine):
            found.setdefault(line.conn, []).append(line)
    return found


RECORDED = _connections("05-collections-disk.jsonl")


@pytest.fixture(scope="module")
def recorded_state() -> ProducerCluster:
    cluster = ProducerCluster(ClusterSettings(vbuckets=1, seed=5, checkpoint_items=0))
    _fill(cluster)
    return cluster


@pytest.mark.parametrize("name", RECORDED)
def test_streams_of_collections_from_disk(recorded_state: ProducerCluster, name: str) -> None:
    compared = 0
    with recorded_state, RawClient(recorded_state.seeds[0]) as client:
        for line in RECORDED[name]:
            for recorded in frames_of(line):
                if not line.from_server:
                    client.send(recorded)
                    continue
                compared += 1
                assert _told(client.next_frame()) == _told(recorded), f"line {line.number}"
        assert client.is_quiet()
    assert compared > 5
