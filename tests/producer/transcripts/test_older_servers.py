"""What a server says that is older than ours, or just starting, is no difference."""

from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Magic, Opcode, Status
from tests.producer.recorded_client import TranscriptLine
from tests.producer.scripted_session import PLAIN, ScriptedSession
from tests.producer_conformance.comparison import differences
from tests.producer_conformance.conversation import Conversation
from tests.producer_conformance.rehearsal import rehearse

YOUNGER = (
    HelloFeature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP,
    HelloFeature.GET_CLUSTER_CONFIG_WITH_GIVEN_VERSION,
)
MAP = b'{"vBucketServerMap":{"vBucketMap":[[0],[0]]}}'


def failures(lines: list[TranscriptLine]) -> list[str]:
    return [text for each in rehearse(Conversation.read(lines)) for text in each.failures]


def refused(value: bytes) -> Frame:
    datatype = int(Datatype.JSON) if value else 0
    return encode(
        m.Refusal(value),
        Opcode.DCP_STREAM_REQ,
        magic=Magic.RESPONSE,
        status=Status.NOT_MY_VBUCKET,
        datatype=datatype,
    )


def test_a_server_that_is_starting_has_no_map_to_tell() -> None:
    assert list(differences(refused(MAP), refused(b""))) == []
    assert list(differences(refused(b""), refused(MAP)))
    assert list(differences(refused(MAP), refused(MAP.replace(b"[0],", b""))))


def test_a_server_that_is_starting_refuses_streams_and_grants_them_later() -> None:
    session = ScriptedSession()
    session.write(1, 2)
    client = session.open()
    session.stream(client)
    session.leave(client)
    again = session.open()
    session.stream(again)
    asked = next(
        at
        for at, line in reversed(list(enumerate(session.r.lines)))
        if line.get("dir") == "c2s" and bytes.fromhex(line["hex"])[1] == Opcode.DCP_STREAM_REQ
    )
    request = session.r.lines[asked]
    opaque = bytes.fromhex(request["hex"])[12:16]
    refusal = refused(b"").to_bytes()
    said = {**request, "dir": "s2c", "hex": (refusal[:12] + opaque + refusal[16:]).hex()}
    assert failures([*session.r.lines[:asked], request, said, *session.r.lines[asked:]]) == []


def test_features_that_came_later_are_not_granted() -> None:
    session = ScriptedSession()
    session.write(1)
    client = session.open((*YOUNGER, *PLAIN))
    session.stream(client)
    session.leave(client)
    lines = list(session.r.lines)
    answer = next(at for at, line in enumerate(lines) if line.get("dir") == "s2c")
    granted = sorted(set(PLAIN), reverse=True)  # in whatever order
    older = encode(
        m.HelloAnswer(tuple(granted)),
        Opcode.HELLO,
        magic=Magic.RESPONSE,
        opaque=int.from_bytes(bytes.fromhex(lines[answer]["hex"])[12:16], "big"),
    )
    lines[answer] = {**lines[answer], "hex": older.to_bytes().hex()}
    assert failures(lines) == []
    lacking = encode(
        m.HelloAnswer(tuple(granted[1:])), Opcode.HELLO, magic=Magic.RESPONSE, opaque=older.opaque
    )
    lines[answer] = {**lines[answer], "hex": lacking.to_bytes().hex()}
    assert len(failures(lines)) == 1


def test_a_client_that_names_the_map_it_has_is_told_of_newer_ones_only() -> None:
    session = ScriptedSession()
    client = session.log_in()
    for rev in (0, 10_000, 1):
        session.ask(client, m.GetClusterConfig(0, rev), Opcode.GET_CLUSTER_CONFIG)
    session.ask(client, m.GetClusterConfig(1, 10_000), Opcode.GET_CLUSTER_CONFIG)
    session.leave(client)
    assert failures(session.r.lines) == []
