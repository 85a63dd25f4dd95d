"""What a recorded client says to ours: proofs, answers and versions depend on what it was told."""

from dataclasses import dataclass, field, replace
from typing import Final

from dcp.protocol.credentials import ALL_MECHANISMS, Credentials, Secret
from dcp.protocol.sasl import SaslExchange
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.producer_conformance.sightings import Sightings
from tests.producer_conformance.subject import SERVED_OPCODES

_WRONG_PASSWORD: Final = "no user's password"
_REQUESTS: Final = (Magic.REQUEST, Magic.ALT_REQUEST)
_ANSWERS: Final = (Magic.RESPONSE, Magic.ALT_RESPONSE)
_NEWEST_MAP: Final = (2**62, 2**62)
_OLDEST_MAP: Final = (0, 0)


@dataclass(slots=True)
class ClientPart:
    """One connection's client. ``noops`` are our opaques by the recorded ones."""

    seen: Sightings
    noops: dict[int, int] = field(default_factory=dict)
    scram: SaslExchange | None = None

    def is_unheard(self, line: int, frame: Frame) -> bool:
        """Whether ours is not told of this, and nothing is expected of it."""
        if (line, frame.opaque) in self.seen.unheard:
            return True
        if frame.opcode in SERVED_OPCODES or frame.magic not in (*_REQUESTS, *_ANSWERS):
            return False
        if frame.magic in _ANSWERS:
            return frame.status != Status.UNKNOWN_COMMAND
        return (line, frame.opaque) in self.seen.known_commands

    def adapted(self, line: int, frame: Frame) -> Frame:
        """Return what the client says to ours instead of a frame."""
        if frame.opcode == Opcode.DCP_NOOP and frame.magic.is_response:
            return replace(frame, opaque=self.noops.pop(frame.opaque, frame.opaque))
        if frame.opcode == Opcode.HELLO:
            return self._without_younger_features(line, frame)
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            return self._with_our_version(line, frame)
        if frame.opcode == Opcode.SASL_AUTH and frame.key != b"PLAIN":
            self.scram = self._exchange(frame, is_wrong=line in self.seen.failed_logins)
        elif frame.opcode == Opcode.SASL_STEP and self.scram is not None:
            return replace(frame, value=self.scram.payload)
        return frame

    def _without_younger_features(self, line: int, frame: Frame) -> Frame:
        unheard = self.seen.unheard_features.get((line, frame.opaque))
        asked = decode(frame) if unheard else None
        if unheard is None or not isinstance(asked, m.Hello):
            return frame
        features = tuple(feature for feature in asked.features if feature not in unheard)
        return encode(m.Hello(asked.agent, features), Opcode.HELLO, opaque=frame.opaque)

    def _with_our_version(self, line: int, frame: Frame) -> Frame:
        """Return a request for the cluster map with a version of ours, if it has one."""
        if not frame.extras:
            return frame
        is_known = (line, frame.opaque) in self.seen.known_maps
        asked = m.GetClusterConfig(*(_NEWEST_MAP if is_known else _OLDEST_MAP))
        return encode(asked, frame.opcode, opaque=frame.opaque)

    def _exchange(self, frame: Frame, *, is_wrong: bool) -> SaslExchange | None:
        parts = dict(part.split("=", 1) for part in frame.value.decode().split(",") if "=" in part)
        mechanism = frame.key.decode()
        if mechanism not in ALL_MECHANISMS or not {"n", "r"} <= set(parts):
            return None
        known = self.seen.logins.get(parts["n"], _WRONG_PASSWORD)
        password = _WRONG_PASSWORD if is_wrong else known
        credentials = Credentials(parts["n"], Secret(password), ALL_MECHANISMS)
        return SaslExchange.start(mechanism, credentials, parts["r"])
