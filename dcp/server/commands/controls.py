"""DCP_CONTROL: one function for each key. Unknown keys and bad values get EINVAL.

Sources: kv_engine ``dcp/producer.cc``, control(); ``docs/dcp/documentation/commands/control.md``.
Statuses are as observed on a 7.0 server.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.streams.dcp_options import DcpOptions, OutOfOrder
from dcp.types import U32_MAX
from dcp.wire.vocabulary import HelloFeature, OpenFlag, Status

_U32_DIGITS: Final = len(str(U32_MAX))
_SECONDS: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_MOST_SECONDS_CHARACTERS: Final = 64
_LARGEST_FLOAT32: Final = 3.4028234663852886e38
_OUT_OF_ORDER: Final = {
    "true": OutOfOrder.YES,
    "true_with_seqno_advanced": OutOfOrder.WITH_SEQNO_ADVANCED,
}
_BACKFILL_ORDERS: Final = {"round-robin": False, "sequential": True}
Control = Callable[[DcpConnection, str], Status]


def _is_true(value: str) -> bool:
    # Every other value turns a switch off, "TRUE" as well.
    return value == "true"


def _set(dcp: DcpConnection, options: DcpOptions) -> Status:
    dcp.negotiate(options)
    return Status.SUCCESS


def _enable_noop(dcp: DcpConnection, value: str) -> Status:
    dcp.noop.enable(is_enabled=_is_true(value))
    return Status.SUCCESS


def _noop_interval(dcp: DcpConnection, value: str) -> Status:
    if len(value) > _MOST_SECONDS_CHARACTERS or not _SECONDS.fullmatch(value):
        return Status.EINVAL
    # kv_engine parses a decimal 32-bit float. Lower values count as the least interval
    # (``noop.py``).
    seconds = float(value)
    if seconds > _LARGEST_FLOAT32:
        return Status.EINVAL
    dcp.noop.set_interval(seconds)
    return Status.SUCCESS


def _window_bytes(value: str) -> int | None:
    """Parse an unsigned decimal of 32 bits; leading zeros are allowed. None: malformed."""
    # The number of digits is checked first: converting a huge one takes quadratic time.
    digits = value.lstrip("0") or value[-1:]
    if (
        not (digits.isascii() and digits.isdigit())
        or len(digits) > _U32_DIGITS
        or int(digits) > U32_MAX
    ):
        return None
    return int(digits)


def _connection_buffer_size(dcp: DcpConnection, value: str) -> Status:
    window_bytes = _window_bytes(value)
    if window_bytes is None:
        return Status.EINVAL
    dcp.flow.set_window(window_bytes)
    return Status.SUCCESS


def _stream_buffer_size(dcp: DcpConnection, value: str) -> Status:
    # The DCP documents describe stream windows, but no server has them.
    if dcp.follows_server:
        return Status.NOT_SUPPORTED
    window_bytes = _window_bytes(value)
    if window_bytes is None:
        return Status.EINVAL
    dcp.set_stream_window(window_bytes)
    return Status.SUCCESS


def _announce_closed(dcp: DcpConnection, value: str) -> Status:
    # The switch works one way: kv_engine never turns it off.
    announces = dcp.options.announces_closed_streams or _is_true(value)
    return _set(dcp, replace(dcp.options, announces_closed_streams=announces))


def _expiry_opcode(dcp: DcpConnection, value: str) -> Status:
    return _set(dcp, replace(dcp.options, expiry_opcode=_is_true(value)))


def _cursor_dropping(dcp: DcpConnection, value: str) -> Status:
    # Only nodes may forbid cursor dropping: a client could pin the whole memory that way.
    keeps_cursors = dcp.is_internal and not _is_true(value)
    return _set(dcp, replace(dcp.options, keeps_cursors=keeps_cursors))


def _backfill_order(dcp: DcpConnection, value: str) -> Status:
    if value not in _BACKFILL_ORDERS:
        return Status.EINVAL
    dcp.ready.order_backfills(is_sequential=_BACKFILL_ORDERS[value])
    return Status.SUCCESS


def _force_compression(dcp: DcpConnection, value: str) -> Status:
    # Forced compression makes sense only to a client that can decompress.
    if HelloFeature.SNAPPY not in dcp.client.features:
        return Status.EINVAL
    return _set(dcp, replace(dcp.options, forces_compression=_is_true(value)))


def _deleted_user_xattrs(dcp: DcpConnection, value: str) -> Status:
    # The flag of DCP_OPEN decides; this control only confirms it.
    is_open = bool(dcp.client.flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS)
    return Status.SUCCESS if is_open and _is_true(value) else Status.EINVAL


def _marker_version(dcp: DcpConnection, value: str) -> Status:
    if value != "2.2":
        return Status.EINVAL
    if HelloFeature.COLLECTIONS not in dcp.client.features:
        return Status.NOT_SUPPORTED
    return _set(dcp, replace(dcp.options, marker_v2=True))


def _change_streams(dcp: DcpConnection, value: str) -> Status:
    if not _is_true(value):
        return Status.EINVAL
    # Without retained history there are no old versions to stream.
    if not dcp.retains_history:
        return Status.NOT_SUPPORTED
    return _set(dcp, replace(dcp.options, change_streams=True))


def _stream_ids(dcp: DcpConnection, value: str) -> Status:
    if not _is_true(value):
        return Status.EINVAL
    if dcp.options.sync_writes:
        return Status.NOT_SUPPORTED
    return _set(dcp, replace(dcp.options, stream_ids=True))


def _sync_writes(dcp: DcpConnection, value: str) -> Status:
    if not _is_true(value):
        return Status.EINVAL
    # Stream ids and sync writes exclude each other.
    if dcp.options.stream_ids:
        return Status.NOT_SUPPORTED
    return _set(dcp, replace(dcp.options, sync_writes=True))


def _out_of_order(dcp: DcpConnection, value: str) -> Status:
    found = _OUT_OF_ORDER.get(value)
    if found is None:
        return Status.EINVAL
    return _set(dcp, replace(dcp.options, out_of_order=found))


def _consumer_name(dcp: DcpConnection, value: str) -> Status:
    return _set(dcp, replace(dcp.options, consumer_name=value.encode()))


def _one_of(*values: str) -> Control:
    return lambda _, value: Status.SUCCESS if value in values else Status.EINVAL


def _always(status: Status) -> Control:
    return lambda _, __: status


# Some keys only tune how a server schedules, or what it may omit: they are accepted without effect.
# Keys that would change the messages and are not built get NOT_SUPPORTED.
CONTROLS: Final[dict[bytes, Control]] = {
    b"enable_noop": _enable_noop,
    b"set_noop_interval": _noop_interval,
    b"connection_buffer_size": _connection_buffer_size,
    b"stream_buffer_size": _stream_buffer_size,
    b"set_priority": _one_of("high", "medium", "low"),
    b"backfill_order": _backfill_order,
    b"force_value_compression": _force_compression,
    b"supports_cursor_dropping": _cursor_dropping,
    b"supports_cursor_dropping_vulcan": _cursor_dropping,
    b"supports_hifi_MFU": _always(Status.SUCCESS),
    b"send_stream_end_on_client_close_stream": _announce_closed,
    b"enable_expiry_opcode": _expiry_opcode,
    b"enable_stream_id": _stream_ids,
    b"enable_sync_writes": _sync_writes,
    b"consumer_name": _consumer_name,
    b"enable_out_of_order_snapshots": _out_of_order,
    b"include_deleted_user_xattrs": _deleted_user_xattrs,
    b"v7_dcp_status_codes": _one_of("true"),
    b"flatbuffers_system_events": _always(Status.NOT_SUPPORTED),
    b"change_streams": _change_streams,
    b"max_marker_version": _marker_version,
    b"cache_transfer": _always(Status.NOT_SUPPORTED),
}


_WINDOWS: Final = (b"connection_buffer_size", b"stream_buffer_size")
_MOST_SHOWN_BYTES: Final = 40


def fault_of_window(name: bytes, value: bytes) -> str:
    """Describe the fault of a requested window size; empty for valid sizes and other controls."""
    if name not in _WINDOWS or _window_bytes(value.decode("latin-1")) is not None:
        return ""
    found = value[:_MOST_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    expected = f"expected a decimal number of bytes from 0 to {U32_MAX}"
    return f"{name.decode()}: found {found!r}, {expected}"


def context_of_refusal(dcp: DcpConnection, name: bytes, value: bytes) -> str:
    if name == b"backfill_order":
        return "Unsupported value for backfill_order"
    # A 7.0 server sends no context for most refusals, as observed.
    return "" if dcp.follows_server else fault_of_window(name, value)


def apply_control(dcp: DcpConnection, name: bytes, value: bytes) -> Status:
    control = CONTROLS.get(name)
    if control is None or not value:
        return Status.EINVAL
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        return Status.EINVAL
    return control(dcp, text)
