"""Questions and answers: seqnos, failover logs, manifests, cluster maps (asked for or pushed)."""

import pytest

from dcp.errors import SourceError
from dcp.protocol import events as e
from dcp.types import FailoverEntry
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, ServerOpcode, Status
from tests.protocol.scripted import LOG, answer_to, block_of, converse
from tests.protocol.streaming import CLUSTER_MAP, IMPOSSIBLE_LOGS, opened


def test_questions_and_their_answers() -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.GET_ALL_VB_SEQNOS] = lambda frame, _: answer_to(
        frame, m.AllVbSeqnos(((0, 5), (1, 2**64 - 1)))
    )
    server.overrides[Opcode.DCP_GET_FAILOVER_LOG] = lambda frame, _: (
        answer_to(frame, m.FailoverLogAnswer(LOG.entries))
        if frame.vbucket == 1
        else answer_to(frame, m.Refusal(CLUSTER_MAP), Status.NOT_MY_VBUCKET)
    )
    connection.request_seqnos()
    connection.request_cluster_config()
    connection.request_failover_log(1)
    connection.request_failover_log(2)
    assert converse(connection, server) == [
        e.SeqnosReceived(((0, 5), (1, 2**64 - 1))),
        e.ClusterConfigReceived(b'{"rev":1}'),
        e.FailoverLogReceived(1, LOG),
        e.FailoverLogReceived(2, None),
        e.ClusterConfigReceived(CLUSTER_MAP),
    ]


def test_a_refused_question_is_a_source_error() -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.GET_ALL_VB_SEQNOS] = lambda frame, _: answer_to(
        frame, status=Status.EACCESS
    )
    connection.request_seqnos()
    with pytest.raises(SourceError, match=r"GET_ALL_VB_SEQNOS: found status 0x24 EACCESS"):
        converse(connection, server)


@pytest.mark.parametrize(("log", "fault"), IMPOSSIBLE_LOGS)
def test_an_impossible_failover_log_costs_its_answer_alone(
    log: tuple[FailoverEntry, ...], fault: str
) -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.DCP_GET_FAILOVER_LOG] = lambda frame, _: answer_to(
        frame, m.FailoverLogAnswer(log if frame.vbucket == 1 else LOG.entries)
    )
    connection.request_failover_log(1)
    connection.request_failover_log(2)
    assert converse(connection, server) == [
        e.FailoverLogReceived(1, None, fault=fault),
        e.FailoverLogReceived(2, LOG),
    ]


def test_a_refused_failover_log_costs_its_answer_alone() -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.DCP_GET_FAILOVER_LOG] = lambda frame, _: answer_to(
        frame, status=Status.ETMPFAIL
    )
    connection.request_failover_log(1)
    fault = (
        "DCP_GET_FAILOVER_LOG: found status 0x86 ETMPFAIL, a temporary failure, expected success"
    )
    assert converse(connection, server) == [e.FailoverLogReceived(1, None, Status.ETMPFAIL, fault)]


@pytest.mark.parametrize(
    ("answer", "status", "manifest"),
    [
        (m.Text(b'{"uid":"0"}'), Status.SUCCESS, b'{"uid":"0"}'),
        (m.Refusal(), Status.NOT_SUPPORTED, None),
        (m.Refusal(), Status.UNKNOWN_COMMAND, None),
    ],
)
def test_a_manifest_is_asked_for_and_may_be_missing(
    answer: m.Body, status: Status, manifest: bytes | None
) -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.GET_COLLECTIONS_MANIFEST] = lambda frame, _: answer_to(
        frame, answer, status
    )
    connection.request_manifest()
    assert converse(connection, server) == [e.ManifestReceived(manifest)]


def test_a_pushed_cluster_map_is_told_and_not_charged() -> None:
    connection, _, _ = opened()
    push = encode(
        m.ClustermapNotification(b"travel", CLUSTER_MAP, 1, 8),
        ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION,
        magic=Magic.SERVER_REQUEST,
    )
    assert connection.receive(block_of(push), 1.0) == [e.ClusterConfigReceived(CLUSTER_MAP)]
    assert connection.flow.connection.received == 0


def test_how_far_a_branch_is_on_a_disk() -> None:
    """After a failover no further than the old branch was taken over."""
    connection, server, _ = opened()
    answers = {
        1: m.ObserveSeqnoAnswer(0, 1, 0xA, 7, 9),
        2: m.ObserveSeqnoAnswer(1, 2, 0xB, 7, 9, 0xA, 5),
        3: m.ObserveSeqnoAnswer(1, 3, 0xB, 7, 9, 0xA, 8),
    }
    asked = []

    def observe(frame: Frame, body: m.Body) -> Frame:
        asked.append(body)
        if frame.vbucket in answers:
            return answer_to(frame, answers[frame.vbucket])
        status = Status.NOT_MY_VBUCKET if frame.vbucket == 4 else Status.KEY_ENOENT
        return answer_to(frame, m.Refusal(CLUSTER_MAP if frame.vbucket == 4 else b""), status)

    server.overrides[Opcode.OBSERVE_SEQNO] = observe
    for vbucket in range(1, 6):
        connection.request_persistence(vbucket, 0xA)
    assert converse(connection, server) == [
        e.PersistenceReceived(1, 7),
        e.PersistenceReceived(2, 5),
        e.PersistenceReceived(3, 7),
        e.PersistenceReceived(4, None),
        e.ClusterConfigReceived(CLUSTER_MAP),
        e.PersistenceReceived(5, None),
    ]
    assert asked == [m.ObserveSeqno(0xA)] * 5
