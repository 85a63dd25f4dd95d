"""Cases of DCP windows: an object with some of the lists below, each of cases with an id.

    policy_cases            consumers of a bucket come and go: which window has each, what it says
    producer_window_cases   what a producer may send, and what acknowledgements do

The first ask the product's window policies and its receive window, the second the producer's
account of one connection. What ``policy: "ratio"`` computes is cut to 32 bits where the case is of
a server that does so (``executed_on`` or ``versions``: master). A step that is not known here
fails.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dcp.protocol.window import CONNECTION, Window
from dcp.protocol.window_policies import (
    FlowSettings,
    WindowPolicy,
    WindowPolicySettings,
    as_float32,
    window_of_each,
)
from dcp.server.model.send_window import SendWindow
from dcp.types import U32_MAX
from tests.conformance_formats.aeron_cases import Case, Compared, result_of, run_sections
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.protocol.named_windows import NamedWindows


class PolicyCases:
    """The format's entry in the registry of ``tests/conformance.py``."""

    name = "window policy cases"

    def recognises(self, file: CaseFile) -> bool:
        """Whether the file is an object with at least one of the sections."""
        content = file.content
        return isinstance(content, dict) and any(
            isinstance(content.get(section), list) for section in _SECTIONS
        )

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per case of each section."""
        yield from run_sections(file, _SECTIONS)


# --- the consumers of a bucket ------------------------------------------------------------------

_NAMES: Final = {
    "min": "size_bytes",
    "max": "most_bytes",
    "perc": "percent",
    "aggr": "threshold_percent",
    "aggrp": "aggressive_percent",
    "ratio": "ratio",
    "override": "override_bytes",
}
"""Our names for the settings of a case."""


class _ConfiguredWindows(NamedWindows):
    """Windows whose quota and numbers change; those of the product's processes are fixed."""

    def set_quota(self, quota_bytes: int) -> dict[str, int]:
        self.quota_bytes = quota_bytes
        return self._reread()

    def set_config(self, settings: WindowPolicySettings) -> dict[str, int]:
        # The engine reads this percentage only at start.
        fixed_percent = self.settings.aggressive_percent
        self.settings = replace(settings, aggressive_percent=fixed_percent)
        return self._reread()

    def _reread(self) -> dict[str, int]:
        if self.settings.policy is WindowPolicy.RATIO and self._sizes:
            self._share(window_of_each(self.settings, self.quota_bytes, len(self._sizes)))
        return self.taken_changes()


@dataclass(slots=True)
class _Consumers:
    """A bucket's consumers, each with its receive window, on a clock that the case moves."""

    policies: _ConfiguredWindows
    ack: FlowSettings
    windows: dict[str, Window] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """The newest size of each window, and so the last one that its producer is told."""
    unsaid: set[str] = field(default_factory=set)
    now: float = 0

    def connect(self, name: str) -> None:
        self.windows[name] = Window(CONNECTION, 0, self.now)
        self.sizes[name] = 0
        self.resize(self.policies.connect(name))

    def disconnect(self, name: str) -> None:
        del self.windows[name], self.sizes[name]
        self.unsaid.discard(name)
        self.resize(self.policies.disconnect(name))

    def set_config(self, key: str, value: Any) -> None:
        settings = replace(self.policies.settings, **{_name_of(key): value})
        self.resize(self.policies.set_config(settings))

    def resize(self, changed: dict[str, int]) -> None:
        for name, size_bytes in changed.items():
            if self.sizes[name] != size_bytes:
                self.sizes[name] = size_bytes
                self.unsaid.add(name)
            if size_bytes <= U32_MAX:  # more is said as it is, and the producer refuses it
                self.windows[name].resize(size_bytes, size_bytes, self.now)

    def process(self, name: str, frame_bytes: int) -> None:
        self.windows[name].receive(frame_bytes, self.now)
        self.windows[name].release(frame_bytes)

    def says(self, name: str) -> str:
        """Return its next message: a new window before an ack, one for each step."""
        if name in self.unsaid:
            self.unsaid.discard(name)
            return f"CONTROL connection_buffer_size={self.sizes[name]}"
        acked_bytes = self.windows[name].acknowledge(self.ack, self.now)
        return f"BUFFER_ACK {acked_bytes}" if acked_bytes else "nothing"


def _name_of(key: str) -> str:
    if key not in _NAMES:
        raise ValueError(f"found the setting {key!r}, expected one of {', '.join(_NAMES)}")
    return _NAMES[key]


def _consumers_of(case: Case) -> _Consumers:
    config = dict(case.get("config") or {})
    policy = WindowPolicy(case["policy"] if config.pop("enabled", True) else "none")
    ack_fraction, ack_seconds = config.pop("ackratio", 0.2), config.pop("acksec", 5)
    if policy is WindowPolicy.RATIO:
        ack_fraction = as_float32(ack_fraction)
    given = {_name_of(key): value for key, value in config.items()}
    server = str(case.get("executed_on", "")), str(case.get("versions", ""))
    is_capped = any(each.startswith("master") for each in server)
    settings = WindowPolicySettings(policy=policy, is_capped=is_capped, **given)
    policies = _ConfiguredWindows(settings, case["bucket_quota"])
    return _Consumers(
        policies, FlowSettings(window_bytes=0, ack_fraction=ack_fraction, ack_seconds=ack_seconds)
    )


def _policy_answers(case: Case) -> Compared:
    consumers = _consumers_of(case)
    for number, event in enumerate(case["events"], 1):
        name = f"event {number}, {event.get('op')}"
        match event.get("op"):
            case "connect":
                consumers.connect(event["conn"])
            case "disconnect":
                consumers.disconnect(event["conn"])
            case "set_quota":
                consumers.resize(consumers.policies.set_quota(event["quota"]))
            case "set_config":
                consumers.set_config(event["key"], event["value"])
            case "clock_s":
                consumers.now = event["now"]
            case "bytes_processed":
                consumers.process(event["conn"], event["bytes"])
            case "expect_sizes":
                yield name, dict(consumers.policies.sizes), event["sizes"]
            case "consumer_step":
                yield f"{name} {event['conn']}", consumers.says(event["conn"]), event["expect"]
            case _:
                yield name, "an unknown event", "one that is known here"
                return


# --- the producer -------------------------------------------------------------------------------


def _producer_answers(case: Case) -> Compared:
    flow, now = SendWindow(), 0.0
    for number, step in enumerate(case["steps"], 1):
        name = f"step {number}, {step.get('op')}"
        match step.get("op"):
            case "set_window":
                flow.set_window(step["bytes"])
            case "send":
                may_send = not flow.is_full
                if may_send:
                    flow.charge(step["bytes"])
                yield name, may_send, step["expect_sent"]
            case "ack":
                is_beyond = flow.acknowledge(step["bytes"]) > 0
                yield f"{name}: over-ack", is_beyond, step.get("expect_over_ack", is_beyond)
            case "full":
                yield name, flow.is_full, step["expect"]
            case "outstanding":
                yield name, flow.outstanding_bytes, step["expect"]
            case "total_acked":
                yield name, flow.acked_bytes, step["expect"]
            case "clock_s":
                now = step["now"]
            case "stuck":
                yield name, flow.is_stuck(step["limit_s"], now), step["expect"]
            case _:
                yield name, "an unknown step", "one that is known here"
                return


_SECTIONS: Final[dict[str, Callable[[Case], CaseResult]]] = {
    "policy_cases": lambda case: result_of(case, _policy_answers(case)),
    "producer_window_cases": lambda case: result_of(case, _producer_answers(case)),
}
