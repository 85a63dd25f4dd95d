"""What the relay's connection to a node asks beside streams: map, manifest, failover logs, seqnos.

Answers wait in ``maps``, ``manifests``, ``logs`` and ``seqnos`` for who reads to clear, and so do
the maps that a node pushes or refuses a stream with.
"""

from typing import Final

from dcp.errors import RemoteProtocolError
from dcp.protocol.outgoing import Outgoing
from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, ServerOpcode, Status, VbucketState

_FIRST_OPAQUE: Final = 1 << 30
"""Opaques from here on are of questions, those below of streams."""


class Questions:
    """The questions of one connection; none is asked before it ``is_ready``."""

    def __init__(self, name: str, outgoing: Outgoing) -> None:
        """``name`` is the connection's, for messages."""
        self.maps: list[bytes] = []
        self.manifests: list[bytes] = []
        self.logs: dict[int, FailoverLog] = {}
        self.seqnos: dict[int, int] = {}
        self.is_ready = False
        self.wants_map = False
        """Whether the cluster has changed: a new map is needed."""
        self._name, self._outgoing = name, outgoing
        self._asked: dict[int, tuple[int, int]] = {}
        self._last_opaque = _FIRST_OPAQUE

    def ask_for_map(self) -> None:
        """Ask for the cluster map; ``maps`` will have it."""
        self._ask(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)

    def ask_for_manifest(self) -> None:
        """Ask for the collections manifest; ``manifests`` will have it."""
        self._ask(m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)

    def ask_for_seqnos(self) -> None:
        """Ask how far the node's active vbuckets are, once at a time; ``seqnos`` will have it."""
        opcode = Opcode.GET_ALL_VB_SEQNOS
        if (int(opcode), 0) not in self._asked.values():
            self._ask(m.GetAllVbSeqnos(int(VbucketState.ACTIVE)), opcode)

    def ask_for_log(self, vbucket: int) -> None:
        """Ask for a vbucket's failover log, once at a time; ``logs`` will have it."""
        opcode = Opcode.DCP_GET_FAILOVER_LOG
        if (int(opcode), vbucket) not in self._asked.values():
            self._ask(m.Empty(), opcode, vbucket)

    def _ask(self, body: m.Body, opcode: Opcode, vbucket: int = 0) -> None:
        if self.is_ready:
            self._last_opaque += 1
            self._asked[self._last_opaque] = int(opcode), vbucket
            self._outgoing.request(body, opcode, vbucket=vbucket, opaque=self._last_opaque)

    def answered(self, frame: Frame) -> bool:
        """Take an answer; whether it is one to a question.

        Raises:
            RemoteProtocolError: it answers something else than was asked, or holds no log.
        """
        asked = self._asked.pop(frame.opaque, None)
        if asked is None:
            return False
        opcode, vbucket = asked
        if frame.opcode != opcode:
            raise RemoteProtocolError(
                f"{self._name}: found an answer to opcode {frame.opcode:#04x}, "
                f"expected one to {opcode:#04x}"
            )
        if frame.status == Status.SUCCESS:
            self._told(frame, vbucket)
        else:
            self.wants_map |= frame.status == Status.NOT_MY_VBUCKET
        return True

    def _told(self, frame: Frame, vbucket: int) -> None:
        body = decode(frame)
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            self.maps.append(frame.value)
        elif frame.opcode == Opcode.GET_COLLECTIONS_MANIFEST:
            self.manifests.append(frame.value)
        elif isinstance(body, m.AllVbSeqnos):
            self.seqnos.update(body.seqnos)
        elif isinstance(body, m.FailoverLogAnswer):
            self.logs[vbucket] = self.log_of(vbucket, body)

    def log_of(self, vbucket: int, body: m.FailoverLogAnswer) -> FailoverLog:
        """Return the log of an answer.

        Raises:
            RemoteProtocolError: there can be no such log.
        """
        try:
            return FailoverLog(body.entries)
        except ValueError as error:
            raise RemoteProtocolError(f"{self._name}: vbucket {vbucket}: {error}") from None

    def pushed(self, frame: Frame) -> None:
        """Take what the node says unasked."""
        if frame.opcode == ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION and frame.value:
            self.maps.append(frame.value)
