"""Declares a connection's flow control, and sizes the windows of a process by kv_engine's policies.

Q is the memory for the quota, n the consumers that are connected, lo and hi are ``size_bytes`` and
``most_bytes``, clamp(x) is lo below lo and hi above hi. Sizes are cut to whole bytes.

    policy       window of a consumer                                   changed for those there
    none         0: no flow control                                     never
    static       lo                                                     never
    dynamic      clamp(percent of Q); lo instead where the sum of all   never
                 windows would be more than threshold_percent of Q
    aggressive   clamp(aggressive_percent of Q / n)                     as others come and go
    ratio        ratio of Q / n                                         with n, the ratio and Q

- Nobody is refused: windows of lo are granted beyond any share, so their sum has no bound but the
  number of consumers. The sum never exceeds n times the larger of lo and hi, with ``ratio`` the
  ratio's share of Q.
- ``aggressive`` reads its percentage once, at the start; everything else is read when a window is
  made. A new Q waits for the next consumer to come or go, but with ``ratio``.
- lo may be above hi, as in the engine, which is told one number after the other: what is below lo
  becomes lo, all else at most hi. A run's settings are refused so (``FlowControlSettings``).
- ``ratio`` is a float of 32 bits. It has no lower bound; its upper one is what a producer can be
  told (``is_capped``; servers from 7.6 to 8.0 had none). ``override_bytes`` stands in for it.

``set_quota`` and ``set_config`` are what an operator of a server may change while it runs; cases of
policies (``tests/conformance.py``) do. A round's windows are planned once, by ``window_of_each``
(``dcp/lake/config/flow_control_settings.py``).

Percentages are computed as the engine does, in floats of 64 bits. Source: kv_engine
``dcp/flow-control-manager.cc`` of 6.5 (four policies, until 7.2) and of 7.6 (``ratio``).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from types import MappingProxyType
from typing import Final

from dcp.errors import LocalProtocolError
from dcp.setting_keys import Section, key, key_of
from dcp.types import U16_MAX, U32_MAX, U64_MAX, require_unsigned

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class FlowSettings(Section):
    """The windows of one connection, and when what they hold is acknowledged."""

    window_bytes: int = key(
        10 * _MIB,
        "What a node may send on one connection before we acknowledge (the DCP buffer size).",
        unit="bytes",
        least=0,
        most=U32_MAX,
    )
    """0: no flow control, which consumers refuse without ``allow_no_flow_control``."""
    allow_no_flow_control: bool = key(
        False,
        "Whether flow control may be off: then nothing but unread sockets bounds the memory, and a "
        "node whose NOOPs wait behind unread data may end the connection.",
    )
    ack_fraction: float = key(
        0.2,
        "Acknowledge when this part of the window has been consumed …",
        unit="part of the window",
        least=0.01,
        most=0.9,
    )
    ack_seconds: float = key(
        5.0, "… or when this long has passed.", unit="seconds", least=0.05, most=60
    )
    stream_window_bytes: int = key(
        0,
        "A window for each vbucket's stream, beside the connection's; 0 means none. Only "
        "producers that follow the DCP document have it (`dcplake serve`); data servers refuse it, "
        "which is logged, and the connection's window holds alone.",
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
    """The rule that sizes each consumer's window."""

    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"
    AGGRESSIVE = "aggressive"
    RATIO = "ratio"


_SHARED: Final = (WindowPolicy.AGGRESSIVE, WindowPolicy.RATIO)
"""Those that give all the same, less as others come."""


@dataclass(frozen=True, slots=True)
class WindowPolicySettings(Section):
    """A policy and its numbers; the defaults are the server's."""

    policy: WindowPolicy = WindowPolicy.AGGRESSIVE
    size_bytes: int = key_of(FlowSettings, "window_bytes")
    most_bytes: int = key(
        50 * _MIB, "dynamic, aggressive: the most of it.", unit="bytes", least=0, most=U32_MAX
    )
    percent: float = key(
        1.0, "dynamic: a new connection's part of the quota.", unit="percent", least=0, most=100
    )
    threshold_percent: float = key(
        10.0,
        "dynamic: where all windows would be more than this part of the quota, each has "
        "`window_bytes`.",
        unit="percent",
        least=0,
        most=100,
    )
    aggressive_percent: float = key(
        5.0,
        "aggressive, ratio: the part of the quota that all connections share.",
        unit="percent",
        least=0,
        most=100,
    )
    ratio: float = key(0.05, "The same for ratio, as the engine has it.", least=0, most=1)
    override_bytes: int = key(
        0, "The window with ratio; 0: as the ratio says.", unit="bytes", least=0, most=U32_MAX
    )
    is_enabled: bool = True
    is_capped: bool = True


def as_float32(value: float) -> float:
    """Return the float of 32 bits nearest to ``value``: 0.05 is 0.05000000074505806."""
    (nearest,) = struct.unpack("f", struct.pack("f", value))
    return float(nearest)


def window_of_each(settings: WindowPolicySettings, quota_bytes: int, consumers: int) -> int:
    """Return the window of each of so many consumers, at least one, if no others ever connected.

    With ``dynamic`` it is that of the last to come: those before may have another.
    """
    others_bytes = (consumers - 1) * _clamped(settings, settings.percent / 100 * quota_bytes)
    return _window_of_last(settings, quota_bytes, consumers, others_bytes)


def _window_of_last(
    settings: WindowPolicySettings, quota_bytes: int, consumers: int, others_bytes: int
) -> int:
    """Return the window of the last of so many consumers; the others have ``others_bytes``."""
    if not settings.is_enabled or settings.policy is WindowPolicy.NONE:
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
    if int(size) < settings.size_bytes:
        return settings.size_bytes
    return min(int(size), settings.most_bytes)


@dataclass(slots=True)
class WindowPolicies:
    """The windows of all consumers by name. Methods return those that they changed."""

    settings: WindowPolicySettings
    quota_bytes: int
    _sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject what is no amount."""
        require_unsigned("quota_bytes", self.quota_bytes, U64_MAX)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The window of each connected consumer in bytes; 0: no flow control."""
        return MappingProxyType(self._sizes)

    @property
    def total_bytes(self) -> int:
        """All windows together: what producers may send before anything is acknowledged."""
        return sum(self._sizes.values())

    def connect(self, name: str) -> dict[str, int]:
        """Give a new consumer its window.

        Raises:
            LocalProtocolError: one of this name is connected.
        """
        if name in self._sizes:
            raise LocalProtocolError(f"connect: found {name!r} connected, expected a new name")
        consumers, others_bytes = len(self._sizes) + 1, self.total_bytes
        size_bytes = _window_of_last(self.settings, self.quota_bytes, consumers, others_bytes)
        changed = self._share(size_bytes) if self.settings.policy in _SHARED else {}
        self._sizes[name] = size_bytes
        return {**changed, name: size_bytes}

    def disconnect(self, name: str) -> dict[str, int]:
        """Forget a consumer that is gone.

        Raises:
            LocalProtocolError: none of this name is connected.
        """
        if self._sizes.pop(name, None) is None:
            raise LocalProtocolError(
                f"disconnect: found no {name!r}, expected a connected consumer"
            )
        return self._share_anew() if self.settings.policy in _SHARED else {}

    def set_quota(self, quota_bytes: int) -> dict[str, int]:
        """Take another amount of memory."""
        require_unsigned("quota_bytes", quota_bytes, U64_MAX)
        self.quota_bytes = quota_bytes
        return self._reread()

    def set_config(self, settings: WindowPolicySettings) -> dict[str, int]:
        """Take other numbers for the same policy.

        Raises:
            LocalProtocolError: another policy, or switched on or off: both are fixed at the start.
        """
        found, fixed = settings, self.settings
        if (found.policy, found.is_enabled) != (fixed.policy, fixed.is_enabled):
            raise LocalProtocolError(
                f"set_config: found policy {found.policy} (enabled: {found.is_enabled}), "
                f"expected {fixed.policy} (enabled: {fixed.is_enabled}) as from the start"
            )
        self.settings = replace(settings, aggressive_percent=fixed.aggressive_percent)
        return self._reread()

    def _reread(self) -> dict[str, int]:
        return self._share_anew() if self.settings.policy is WindowPolicy.RATIO else {}

    def _share_anew(self) -> dict[str, int]:
        if not self._sizes:
            return {}
        return self._share(window_of_each(self.settings, self.quota_bytes, len(self._sizes)))

    def _share(self, size_bytes: int) -> dict[str, int]:
        changed = {name: size_bytes for name, now in self._sizes.items() if now != size_bytes}
        self._sizes.update(changed)
        return changed


Resize = Callable[[int], None]
"""Gives a connection another window, of so many bytes."""


class SharedWindows:
    """Connections that share a quota, each known by the command that resizes its window.

    A new one may change the windows of those that are there.
    """

    def __init__(self, settings: WindowPolicySettings, quota_bytes: int) -> None:
        self._policies = WindowPolicies(settings, quota_bytes)
        self._names: dict[Resize, str] = {}
        self._numbers = count(1)

    def join(self, resize: Resize) -> int:
        """Return the window of a new connection; the others are told their new sizes."""
        name = str(next(self._numbers))
        sizes = self._policies.connect(name)
        self._tell(sizes)
        self._names[resize] = name
        return sizes[name]

    def leave(self, resize: Resize) -> None:
        """Forget a connection that is over; the others are told their new sizes."""
        self._tell(self._policies.disconnect(self._names.pop(resize)))

    def _tell(self, sizes: Mapping[str, int]) -> None:
        for resize, name in self._names.items():
            if name in sizes:
                resize(sizes[name])
