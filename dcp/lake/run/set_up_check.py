"""Tells the set-up of a connection, step by step, with what each step found or agreed on."""

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.certificates import certificate_names, common_names
from dcp.client.set_up import TCP, TLS, SetUpStep
from dcp.errors import DcplakeError
from dcp.lake.run.checked_step import CheckedStep, Finding, StepState, Tell
from dcp.protocol import bootstrap
from dcp.protocol.negotiation import refused_features
from dcp.wire.vocabulary import HelloFeature

_SECONDS_A_DAY: Final = 86_400
_FEW_DAYS: Final = 30
"""A certificate that ends so soon is worth a warning."""

_LINES: Final = {
    TCP: "TCP",
    TLS: "TLS",
    bootstrap.HELLO.name: "HELLO",
    bootstrap.LIST_MECHANISMS.name: "SASL",
    bootstrap.AUTHENTICATE.name: "SASL",
    bootstrap.CONTINUE_AUTHENTICATION.name: "SASL",
    bootstrap.SELECT_BUCKET.name: "bucket",
    bootstrap.GET_CLUSTER_CONFIG.name: "bucket",
}
_DCP: Final = "DCP"
"""VERSION, DCP_OPEN, and the controls."""


class SetUpCheck:
    """Tells the steps of one connection's set-up, each when the next one begins."""

    def __init__(self, node: NodeAddress, tell: Tell, *, is_first: bool) -> None:
        """``is_first``: also tells the steps before DCP, which later connections repeat."""
        self._node = node
        self._tell = tell
        self._is_first = is_first
        self._name = ""
        self._begun = monotonic()
        self.progress: bootstrap.BootstrapProgress | None = None

    def begin(self, step: SetUpStep) -> None:
        self.progress = step.progress
        name = _LINES.get(step.name, _DCP)
        if step.name and name != self._name:
            if self._name and self._is_first:
                finding = Finding()
                _DESCRIBED[self._name](step, self._node, finding)
                with suppress(BrokenPipeError):  # this is not its thread: the next line ends it
                    self._tell(finding.checked(self._name, self._begun))
            self._name, self._begun = name, monotonic()

    def end(self, finding: Finding) -> None:
        self._tell(finding.checked(self._name, self._begun))

    def fail(self, error: DcplakeError) -> None:
        seconds = monotonic() - self._begun
        self._tell(CheckedStep(self._name, StepState.FAILED, seconds, str(error)))


def _tcp(_: SetUpStep, node: NodeAddress, finding: Finding) -> None:
    finding.say(f"connected to {node}")


def _tls(step: SetUpStep, _: NodeAddress, finding: Finding) -> None:
    assert step.line is not None
    certificate = step.line.certificate
    names = certificate_names(certificate)
    issuer = ", ".join(common_names(certificate.get("issuer", ()))) or "(no name)"
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    days = int((ends - time.time()) // _SECONDS_A_DAY)
    finding.say(
        f"{step.line.tls_version}, certificate of {', '.join(names)}, by {issuer}, {days} days "
        "left",
        names=names,
        issuer=issuer,
        days_left=days,
    )
    if days < _FEW_DAYS:
        finding.warnings.append("renew it soon")


def _hello(step: SetUpStep, _: NodeAddress, finding: Finding) -> None:
    granted = [HelloFeature(code).name for code in sorted(step.progress.features)]
    refused = refused_features(step.progress.features)
    finding.say(f"granted {', '.join(granted)}", granted=granted, refused=refused)
    finding.warnings.extend(costs_of(refused))


def costs_of(refused: Mapping[str, str]) -> list[str]:
    return [f"without {name}: {lost}" for name, lost in refused.items()]


def _sasl(step: SetUpStep, _: NodeAddress, finding: Finding) -> None:
    mechanism, user = step.progress.mechanism, step.progress.credentials.username
    finding.say(f"signed in as {user!r} by {mechanism}", mechanism=mechanism)


_DESCRIBED: Final[Mapping[str, Callable[[SetUpStep, NodeAddress, Finding], None]]] = {
    "TCP": _tcp,
    "TLS": _tls,
    "HELLO": _hello,
    "SASL": _sasl,
}
