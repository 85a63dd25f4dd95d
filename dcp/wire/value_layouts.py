"""Layouts of values that are structures, not documents: logs, lists of seqnos, markers v2."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from struct import Struct, iter_unpack, pack
from typing import Any, Final

from dcp.errors import FrameError
from dcp.types import FailoverEntry
from dcp.wire.frame import Frame

_Values = dict[str, Any]
_Versions = dict[int | None, tuple[Struct, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """A pair of functions that ``codec.py`` names in its table."""

    decode: Callable[[Frame, _Values], _Values]
    """Returns the body's fields in a value, from the frame and the fields in its extras: a marker's
    layout depends on the version there."""
    encode: Callable[[Any], bytes]
    """Returns the value of a body."""


def _misfit(frame: Frame, expected: str) -> FrameError:
    return FrameError(
        f"opcode {frame.opcode:#04x} value: found {len(frame.value)} bytes, expected {expected}"
    )


def raw(name: str = "value") -> ValueLayout:
    """Return the layout of a value that fills one field unchanged."""
    return ValueLayout(lambda frame, _: {name: frame.value}, attrgetter(name))


RAW: Final = raw()


def _struct_layout(layout: str, *names: str) -> ValueLayout:
    struct = Struct(">" + layout)

    def read(frame: Frame, _: _Values) -> _Values:
        if len(frame.value) != struct.size:
            raise _misfit(frame, str(struct.size))
        return dict(zip(names, struct.unpack(frame.value), strict=True))

    def write(body: object) -> bytes:
        return struct.pack(*(getattr(body, name) for name in names))

    return ValueLayout(read, write)


VERSION_NUMBER: Final = _struct_layout("H", "version")
VB_UUID: Final = _struct_layout("Q", "vb_uuid")
ROLLBACK_SEQNO: Final = _struct_layout("Q", "rollback_seqno")


def _rows_layout(
    layout: str, name: str, make: Callable[..., Any], take: Callable[[Any], Any]
) -> ValueLayout:
    size = Struct(">" + layout).size

    def read(frame: Frame, _: _Values) -> _Values:
        if len(frame.value) % size:
            raise _misfit(frame, f"a multiple of {size}")
        return {name: tuple(make(*row) for row in iter_unpack(">" + layout, frame.value))}

    def write(body: object) -> bytes:
        return b"".join(pack(">" + layout, *take(row)) for row in getattr(body, name))

    return ValueLayout(read, write)


FEATURE_CODES: Final = _rows_layout("H", "features", int, lambda feature: (feature,))
FAILOVER_LOG: Final = _rows_layout(
    "QQ", "entries", FailoverEntry, lambda entry: (entry.vb_uuid, entry.seqno)
)
VB_SEQNOS: Final = _rows_layout(
    "HQ", "seqnos", lambda vbucket, seqno: (vbucket, seqno), lambda pair: pair
)


def _pack_version(body: Any, version: int | None, versions: _Versions) -> bytes:
    """Pack the layout of ``version``.

    Raises TypeError if a field is set that this version lacks: packing would lose it.
    """
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise TypeError(f"encode {type(body).__name__}: found version {version}, expected {known}")
    struct, names = versions[version]
    missing = [name for name in names if getattr(body, name) is None]
    optional = [field.name for field in fields(body) if field.default is None]
    spare = [name for name in optional if getattr(body, name) is not None and name not in names]
    if missing or set(spare) - {"version"}:
        raise TypeError(
            f"encode {type(body).__name__} version {version}: "
            f"found {missing or 'no field'} missing and {spare or 'no field'} too many"
        )
    return struct.pack(*(getattr(body, name) for name in names))


_OBSERVE_FORMATS: Final[_Versions] = {
    0: (Struct(">BHQQQ"), ("format", "vb", "vb_uuid", "persisted", "current")),
    1: (
        Struct(">BHQQQQQ"),
        ("format", "vb", "vb_uuid", "persisted", "current", "old_uuid", "last_seqno_old"),
    ),
}


def _read_observe(frame: Frame, _: _Values) -> _Values:
    layout = _OBSERVE_FORMATS.get(frame.value[0] if frame.value else -1)
    if layout is None or len(frame.value) != layout[0].size:
        raise _misfit(frame, "27 in format 0 or 43 in format 1")
    return dict(zip(layout[1], layout[0].unpack(frame.value), strict=True))


def _write_observe(body: Any) -> bytes:
    return _pack_version(body, body.format, _OBSERVE_FORMATS)


OBSERVE_SEQNO: Final = ValueLayout(_read_observe, _write_observe)

_MARKER_BASE: Final = ("start", "end", "flags", "max_visible_seqno", "high_completed_seqno")
_MARKER_VERSIONS: Final[_Versions] = {
    None: (Struct(""), ()),
    0: (Struct(">QQIQQ"), _MARKER_BASE),
    1: (Struct(">QQIQQQ"), (*_MARKER_BASE, "timestamp")),
    2: (Struct(">QQIQQQQ"), (*_MARKER_BASE, "purge_seqno", "high_prepared_seqno")),
}


def _marker_name(version: int | None) -> str:
    return "v1" if version is None else f"v2.{version}"


def _read_marker(frame: Frame, extras: _Values) -> _Values:
    version = extras.get("version")
    layout = _MARKER_VERSIONS.get(version)
    if layout is None:
        raise FrameError(f"snapshot marker: found version 2.{version}, expected 2.0, 2.1 or 2.2")
    if len(frame.value) != layout[0].size:
        raise _misfit(frame, f"{layout[0].size} in a snapshot marker {_marker_name(version)}")
    return dict(zip(layout[1], layout[0].unpack(frame.value), strict=True))


def _write_marker(body: Any) -> bytes:
    return _pack_version(body, body.version, _MARKER_VERSIONS)


MARKER_V2: Final = ValueLayout(_read_marker, _write_marker)
"""The value of a marker v2.x; empty in v1, which keeps all fields in its extras."""
