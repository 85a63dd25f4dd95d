"""A sender's flow-control strategy and its numbers, as Aeron's ``fc=`` parameter expresses them.

    strategy   group tag   group size, timeout   rrwm
    max        none        the defaults          1 to 2147483647
    min        none        any                   1 to 2147483647
    tagged     64 bits     any                   1 to 2147483647

``flow_spec.py`` parses the parameter.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1
NEVER_NS: Final = I64_MAX
"""The longest duration: 292 years."""
UNIT_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Units of durations, the longest first."""
_GROUP_TAG: Final = -1
_TIMEOUT_NS: Final = 5 * UNIT_NS["s"]
_RETRANSMIT_MULTIPLE: Final = 4
_TAG: Final = re.compile(r"-?[0-9]{1,19}")


class FlowStrategy(StrEnum):
    """The rule that computes a sender's limit from its receivers' positions."""

    MAX = "max"
    """The limit of the fastest receiver."""
    MIN = "min"
    """The limit of the slowest receiver."""
    TAGGED = "tagged"
    """The limit of the slowest receiver with the group tag."""


GROUP_STRATEGIES: Final = frozenset({FlowStrategy.MIN, FlowStrategy.TAGGED})
"""They track a group of receivers; the others follow every status message."""


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """One flow-control parameter. Parsing its ``str`` gives an equal value."""

    strategy: FlowStrategy = FlowStrategy.MAX
    group_tag: int | None = None
    """Set only for ``tagged``."""
    group_min_size: int = 0
    receiver_timeout_ns: int = _TIMEOUT_NS
    retransmit_multiple: int = _RETRANSMIT_MULTIPLE
    """The number of receiver windows that one retransmit may cover."""

    def __post_init__(self) -> None:
        _require("group_min_size", self.group_min_size, 0, I32_MAX)
        _require("receiver_timeout_ns", self.receiver_timeout_ns, 0, NEVER_NS)
        _require("retransmit_multiple", self.retransmit_multiple, 1, I32_MAX)
        if self.strategy is FlowStrategy.TAGGED:
            _require("group_tag", self.group_tag, -I64_MAX - 1, I64_MAX)
        else:
            self._require_only("group_tag", None)
        if self.strategy not in GROUP_STRATEGIES:
            self._require_only("group_min_size", 0)
            self._require_only("receiver_timeout_ns", _TIMEOUT_NS)

    def _require_only(self, name: str, expected: int | None) -> None:
        if (found := getattr(self, name)) != expected:
            raise ValueError(
                f"{name}: found {found!r}, expected {expected}: {self.strategy} has no other"
            )

    def __str__(self) -> str:
        options = [self.strategy.value]
        if self.strategy in GROUP_STRATEGIES:
            tag = "" if self.group_tag is None else self.group_tag
            timeout = _duration_text(self.receiver_timeout_ns)
            options += [f"g:{tag}/{self.group_min_size}", f"t:{timeout}"]
        return ",".join([*options, f"rrwm:{self.retransmit_multiple}"])


def bare_spec(strategy: FlowStrategy) -> FlowSpec:
    """Return a strategy with Aeron's numbers."""
    return FlowSpec(strategy, _GROUP_TAG if strategy is FlowStrategy.TAGGED else None)


def group_tag_of(text: str) -> int | None:
    """Return the group tag that a text is, a decimal number of 64 bits with a sign; else None."""
    tag = int(text) if _TAG.fullmatch(text) else I64_MAX + 1
    return tag if -I64_MAX - 1 <= tag <= I64_MAX else None


def _require(name: str, found: object, least: int, most: int) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise ValueError(f"{name}: found {found!r}, expected an integer from {least} to {most}")


def _duration_text(duration_ns: int) -> str:
    return next(
        f"{duration_ns // ns}{unit}" for unit, ns in UNIT_NS.items() if duration_ns % ns == 0
    )
