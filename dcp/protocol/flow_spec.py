"""Parses Aeron's ``fc=`` parameter: a flow-control strategy with its group and numbers.

    fc        = strategy *( "," option ) [ "," ]
    strategy  = "max" | "min" | "tagged"               case sensitive, first
    option    = "g:" group | "t:" duration | "rrwm:" number
    group     = tag | "/" size | tag "/" size          missing parts: the default
    tag       = ["-"] digits                           64 bits with a sign; min ignores it
    size      = ["-"] digits                           0 to 2147483647
    duration  = digits [ "ns" | "us" | "ms" | "s" ]    without a unit: nanoseconds
    number    = ["+"] digits                           1 to 2147483647

``max`` takes ``rrwm`` only. Of repeated options the last one counts. A text that only one of
Aeron's two drivers accepts is refused; ``docs/howto/relay.md`` lists their differences. Source:
Aeron,
``AbstractMinMulticastFlowControl.parseUriParam``, ``FlowControl.retransmitReceiverWindowMultiple``,
``SystemUtil.parseDuration`` (Java); ``aeron_flow_control.c``, ``aeron_parse_util.c`` (C).
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dcp.errors import ConfigError
from dcp.protocol.flow_strategy import (
    I32_MAX,
    I64_MAX,
    NEVER_NS,
    UNIT_NS,
    FlowSpec,
    FlowStrategy,
    bare_spec,
    group_tag_of,
)

_MOST_SHOWN: Final = 200
_MOST_DIGITS: Final = 19
_BY_NAME: Final = {each.value: each for each in FlowStrategy}
_OPTIONS: Final = {
    FlowStrategy.MAX: ("rrwm:",),
    FlowStrategy.MIN: ("g:", "t:", "rrwm:"),
    FlowStrategy.TAGGED: ("g:", "t:", "rrwm:"),
}
_DURATION: Final = re.compile(r"([0-9]{1,19})(ns|us|ms|s|)", re.IGNORECASE)
_SIZE: Final = re.compile(r"-?[0-9]{1,10}")
_COUNT: Final = re.compile(r"[+]?[0-9]+")
_BEGINS_AS_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]")
_SOME_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]+")


def parse_flow_spec(text: str, bare: Callable[[FlowStrategy], FlowSpec] = bare_spec) -> FlowSpec:
    """Return the value of an ``fc=`` parameter. ``bare`` has the numbers that the text leaves out.

    Raises:
        ConfigError: the text is malformed; the message names the position.
    """
    name, *options = text.split(",")
    strategy = _BY_NAME.get(name)
    if strategy is None:
        raise _wrong(text, 0, name, "a strategy: max, min or tagged")
    spec = bare(strategy)
    # Both drivers accept one comma at the end.
    if options and not options[-1]:
        options.pop()
    at = len(name) + 1
    for option in options:
        spec = _with_option(spec, text, option, at)
        at += len(option) + 1
    return spec


def _with_option(spec: FlowSpec, text: str, option: str, at: int) -> FlowSpec:
    known = _OPTIONS[spec.strategy]
    key = next((key for key in known if option.startswith(key)), None)
    if key is None:
        raise _wrong(text, at, option, f"an option of {spec.strategy}: {', '.join(known)}")
    value, at = option.removeprefix(key), at + len(key)
    if key == "g:":
        return _with_group(spec, text, value, at)
    if key == "t:":
        return replace(spec, receiver_timeout_ns=_duration_ns(text, value, at))
    count = _number(value) if _COUNT.fullmatch(value) else 0
    if not 1 <= count <= I32_MAX:
        raise _wrong(text, at, value, f"a number from 1 to {I32_MAX}")
    return replace(spec, retransmit_multiple=count)


def _with_group(spec: FlowSpec, text: str, value: str, at: int) -> FlowSpec:
    tag, slash, size = value.partition("/")
    if not value:
        raise _wrong(text, at, value, "a group: TAG, /SIZE or TAG/SIZE")
    if tag and spec.strategy is FlowStrategy.TAGGED:
        number = group_tag_of(tag)
        if number is None:
            raise _wrong(text, at, tag, "a group tag: a decimal number of 64 bits")
        spec = replace(spec, group_tag=number)
    elif _BEGINS_AS_NUMBER.match(tag) and not _is_ignored(tag, slash):
        raise _wrong(text, at, tag, "a group tag: a decimal number of 64 bits")
    if slash:
        members = int(size) if _SIZE.fullmatch(size) else -1
        if not 0 <= members <= I32_MAX:
            where = at + len(tag) + 1
            raise _wrong(text, where, size, f"a group size from 0 to {I32_MAX}")
        spec = replace(spec, group_min_size=members)
    return spec


def _is_ignored(tag: str, slash: str) -> bool:
    """Return whether ``min`` ignores a tag that begins as a number, as both drivers do."""
    if not _SOME_NUMBER.fullmatch(tag):
        return False
    # The drivers accept more than 64 bits only if a size follows.
    return bool(slash) or -I64_MAX - 1 <= _number(tag) <= I64_MAX


def _number(text: str) -> int:
    """Return a number of any length; beyond 64 bits the exact value does not matter."""
    digits = text.strip().lstrip("+-").lstrip("0") or "0"
    found = int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
    return -found if "-" in text else found


def _duration_ns(text: str, value: str, at: int) -> int:
    found = _DURATION.fullmatch(value)
    if found is None or int(found[1]) > I64_MAX:
        raise _wrong(text, at, value, "a duration: digits and ns, us, ms, s or nothing")
    # Aeron takes a duration beyond 63 bits of nanoseconds as the longest one.
    return min(int(found[1]) * UNIT_NS[found[2].lower() or "ns"], NEVER_NS)


def _wrong(text: str, at: int, found: str, expected: str) -> ConfigError:
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return ConfigError(
        f"fc={shown}: at character {at + 1}: found {found[:_MOST_SHOWN]!r}, expected {expected}"
    )
