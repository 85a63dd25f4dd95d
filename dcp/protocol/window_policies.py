"""The settings of flow control, and kv_engine's policies for the windows of a process.

Q is the memory for the quota, n the number of connected consumers, lo ``size_bytes``, hi
``most_bytes``. clamp(x) is lo below lo and hi above hi. Sizes are cut to whole bytes.

    policy       window of a consumer                                   changes once connected
    none         0: no flow control                                     never
    static       lo                                                     never
    dynamic      clamp(percent of Q); lo instead if the sum of all      never
                 windows would be more than threshold_percent of Q
    aggressive   clamp(aggressive_percent of Q / n)                     as others come and go
    ratio        ratio of Q / n                                         as others come and go

Each consumer gets at least lo (except with ``ratio``), so their sum has no bound. Source: kv_engine
``dcp/flow-control-manager.cc`` of 6.5 (four policies, until 7.2) and of 7.6 (``ratio``).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dcp.errors import LocalProtocolError
from dcp.setting_keys import Section, key, key_of
from dcp.types import U16_MAX, U32_MAX, U64_MAX, require_unsigned

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class FlowSettings(Section):
    window_bytes: int = key(
        10 * _MIB,
        "Bytes that a node may send on one connection before an acknowledgement (DCP buffer size).",
        unit="bytes",
        least=0,
        most=U32_MAX,
    )
    """0: no flow control, which consumers refuse without ``allow_no_flow_control``."""
    allow_no_flow_control: bool = key(
        False,
        "Whether flow control may be off. Then only unread sockets bound the memory, and a node "
        "whose NOOPs wait behind unread data may end the connection.",
    )
    ack_fraction: float = key(
        0.2,
        "Acknowledge when more than this part of the window is released, or after `ack_seconds`.",
        unit="part of the window",
        least=0.01,
        most=0.9,
    )
    ack_seconds: float = key(
        5.0,
        "Acknowledge released bytes after this time at the latest.",
        unit="seconds",
        least=0.05,
        most=60,
    )
    stream_window_bytes: int = key(
        0,
        "A window for each vbucket's stream, in addition to the connection's; 0 means none. "
        "`dcplake serve` supports it. Data servers refuse it, which the log shows; then only the "
        "connection's window limits.",
        unit="bytes",
        least=0,
        most=U32_MAX,
    )
    prepare_extra_bytes: int = key(
        0,
        "What flow control charges for a prepare beyond its length (kv_engine charges 2).",
        unit="bytes",
        least=0,
        most=U16_MAX,
        is_internal=True,
    )


class WindowPolicy(StrEnum):
    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"
    AGGRESSIVE = "aggressive"
    RATIO = "ratio"


_SHARED: Final = (WindowPolicy.AGGRESSIVE, WindowPolicy.RATIO)
"""Policies that give all consumers the same, and less when others come."""


@dataclass(frozen=True, slots=True)
class WindowPolicySettings(Section):
    """A policy and its numbers; the defaults are the server's."""

    policy: WindowPolicy = key(
        WindowPolicy.AGGRESSIVE,
        "The rule that sizes the windows.",
        is_internal=True,
    )
    size_bytes: int = key_of(FlowSettings, "window_bytes")
    # The engine gets the two numbers one after the other, so this one may be the smaller. A run's
    # settings refuse that (``FlowControlSettings``).
    most_bytes: int = key(
        50 * _MIB, "dynamic, aggressive: the largest window.", unit="bytes", least=0, most=U32_MAX
    )
    percent: float = key(
        1.0, "dynamic: a new connection's part of the quota.", unit="percent", least=0, most=100
    )
    threshold_percent: float = key(
        10.0,
        "dynamic: if all windows together would exceed this part of the quota, a new connection "
        "has `window_bytes`.",
        unit="percent",
        least=0,
        most=100,
    )
    aggressive_percent: float = key(
        5.0,
        "aggressive: the part of the quota that all connections share.",
        unit="percent",
        least=0,
        most=100,
    )
    ratio: float = key(
        0.05, "ratio: the fraction of the quota that all connections share.", least=0, most=1
    )
    override_bytes: int = key(
        0, "ratio: a fixed window instead; 0: none.", unit="bytes", least=0, most=U32_MAX
    )
    is_capped: bool = key(
        True,
        "Whether `ratio` is limited to 32 bits, which the protocol allows. Servers from 7.6 to 8.0 "
        "do not limit it.",
        is_internal=True,
    )


# As the engine computes: 0.05 becomes 0.05000000074505806.
def as_float32(value: float) -> float:
    """Return the nearest float of 32 bits, the engine's type for ``ratio``."""
    (nearest,) = struct.unpack("f", struct.pack("f", value))
    return float(nearest)


def window_of_each(settings: WindowPolicySettings, quota_bytes: int, consumers: int) -> int:
    """Return the window of each consumer after so many have connected (1 or more) and none left.

    With ``dynamic`` it is the window of the last one: earlier ones may have another.
    """
    others_bytes = (consumers - 1) * _clamped(settings, settings.percent / 100 * quota_bytes)
    return _window_of_last(settings, quota_bytes, consumers, others_bytes)


def _window_of_last(
    settings: WindowPolicySettings, quota_bytes: int, consumers: int, others_bytes: int
) -> int:
    """Return the window of the last of ``consumers`` consumers; the others have
    ``others_bytes``.
    """
    if settings.policy is WindowPolicy.NONE:
        return 0
    if settings.policy is WindowPolicy.STATIC:
        return settings.size_bytes
    if settings.policy is WindowPolicy.DYNAMIC:
        size_bytes = _clamped(settings, settings.percent / 100 * quota_bytes)
        is_over = others_bytes + size_bytes > settings.threshold_percent / 100 * quota_bytes
        return settings.size_bytes if is_over else size_bytes
    if settings.policy is WindowPolicy.AGGRESSIVE:
        return _clamped(settings, settings.aggressive_percent / 100 * quota_bytes / consumers)
    if settings.override_bytes:
        return settings.override_bytes
    size_bytes = int(as_float32(settings.ratio) * quota_bytes / consumers)
    return min(size_bytes, U32_MAX) if settings.is_capped else size_bytes


def _clamped(settings: WindowPolicySettings, size: float) -> int:
    # In this order: with lo above hi, sizes below lo become lo and all others at most hi.
    if int(size) < settings.size_bytes:
        return settings.size_bytes
    return min(int(size), settings.most_bytes)


Resize = Callable[[int], None]
"""Gives a connection a window of another size."""


class SharedWindows:
    """Connections that share a quota. A new one may change the windows of the others."""

    def __init__(self, settings: WindowPolicySettings, quota_bytes: int) -> None:
        require_unsigned("quota_bytes", quota_bytes, U64_MAX)
        self.settings = settings
        self.quota_bytes = quota_bytes
        self._sizes: dict[Resize, int] = {}

    def join(self, resize: Resize) -> int:
        """Return the window of a new connection, 0 for no flow control, and resize the others.

        Raises LocalProtocolError if the connection has joined already.
        """
        if resize in self._sizes:
            raise LocalProtocolError("join: found a connection that has joined, expected a new one")
        consumers, others_bytes = len(self._sizes) + 1, sum(self._sizes.values())
        size_bytes = _window_of_last(self.settings, self.quota_bytes, consumers, others_bytes)
        self._sizes[resize] = size_bytes
        if self.settings.policy in _SHARED:
            self._share(size_bytes)
        return size_bytes

    def leave(self, resize: Resize) -> None:
        """Forget a connection that is over, and resize the others.

        Raises LocalProtocolError if the connection has not joined.
        """
        if self._sizes.pop(resize, None) is None:
            raise LocalProtocolError("leave: found an unknown connection, expected one that joined")
        if self.settings.policy in _SHARED and self._sizes:
            self._share(window_of_each(self.settings, self.quota_bytes, len(self._sizes)))

    def _share(self, size_bytes: int) -> None:
        changed = [
            resize for resize, known_bytes in self._sizes.items() if known_bytes != size_bytes
        ]
        self._sizes.update(dict.fromkeys(changed, size_bytes))
        for resize in changed:
            resize(size_bytes)
