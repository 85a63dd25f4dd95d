"""What a recorded client says to ours: proofs and answers depend on what it was told."""

from dataclasses import dataclass, field
from typing import Final

from dcp.protocol.credentials import ALL_MECHANISMS, Credentials, Secret
from dcp.protocol.sasl import SaslExchange
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status
from tests.producer_conformance.scenario import Scenario

_WRONG_PASSWORD: Final = "no user's password"


@dataclass(slots=True)
class ClientPart:
    """One connection's client. ``noops`` are our opaques by the recorded ones."""

    scenario: Scenario
    noops: dict[int, int] = field(default_factory=dict)
    _scram: SaslExchange | None = None

    def adapted(self, line: int, frame: Frame) -> Frame:
        """Return what the client says to ours instead of a frame."""
        if frame.opcode == Opcode.DCP_NOOP and frame.magic.is_response:
            return frame._replace(opaque=self.noops.pop(frame.opaque, frame.opaque))
        if frame.opcode == Opcode.HELLO:
            return self._without_younger_features(frame)
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            return frame._replace(extras=b"")  # the version of another cluster's map
        if frame.opcode == Opcode.SASL_AUTH and frame.key != b"PLAIN":
            self._scram = self._exchange(frame, line in self.scenario.wrong_passwords)
        elif frame.opcode == Opcode.SASL_STEP and self._scram is not None:
            return frame._replace(value=self._scram.payload)
        return frame

    def learn(self, ours: Frame, recorded: Frame) -> None:
        """Hear what ours said where the recorded server said something like it.

        Raises:
            AuthenticationError: ours is no answer to the client's proof.
        """
        if ours.opcode == Opcode.DCP_NOOP and not ours.magic.is_response:
            self.noops[recorded.opaque] = ours.opaque
        if ours.magic.is_response and ours.status == Status.AUTH_CONTINUE and self._scram:
            self._scram = self._scram.answer(ours.value)

    def _without_younger_features(self, frame: Frame) -> Frame:
        asked = decode(frame) if self.scenario.younger_features else None
        if not isinstance(asked, m.Hello):
            return frame
        known = (each for each in asked.features if each not in self.scenario.younger_features)
        return encode(m.Hello(asked.agent, tuple(known)), Opcode.HELLO, opaque=frame.opaque)

    def _exchange(self, frame: Frame, is_wrong: bool) -> SaslExchange | None:
        parts = dict(part.split("=", 1) for part in frame.value.decode().split(",") if "=" in part)
        mechanism = frame.key.decode()
        if mechanism not in ALL_MECHANISMS or not {"n", "r"} <= set(parts):
            return None
        known = self.scenario.users.get(parts["n"], _WRONG_PASSWORD)
        secret = Secret(_WRONG_PASSWORD if is_wrong else known)
        credentials = Credentials(parts["n"], secret, ALL_MECHANISMS)
        return SaslExchange.start(mechanism, credentials, parts["r"])
