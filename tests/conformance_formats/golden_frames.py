"""Golden frames: ``{"frames": [{"name", "hex", "fields"}…]}``.

A case passes when its bytes go through splitter and codec and come back byte for byte, and when
every entry of ``fields`` is what the decoded frame says. A field name that is not understood fails.
"""

from collections.abc import Iterator
from typing import Any

from dcp.errors import FrameError
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.conformance_formats.golden_facts import Facts, facts_of
from tests.conformance_formats.golden_names import CANONICAL, KNOWN, REMARKS
from tests.conformance_formats.matching import Number, matches


class GoldenFrames:
    """The format's entry in the registry of ``tests/conformance.py``."""

    name = "golden frames"

    def recognises(self, file: CaseFile) -> bool:
        """Whether the file is an object with a list ``frames`` of objects with ``hex``."""
        frames = file.content.get("frames") if isinstance(file.content, dict) else None
        return isinstance(frames, list) and all(
            isinstance(case, dict) and "hex" in case and "fields" in case for case in frames
        )

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per frame."""
        for index, case in enumerate(file.content["frames"]):
            name = str(case.get("name", f"frame {index}"))
            try:
                failures = tuple(_failures(bytes.fromhex(case["hex"]), case["fields"]))
            except (FrameError, ValueError, TypeError, KeyError, IndexError) as error:
                failures = (f"{type(error).__name__}: {error}",)
            yield CaseResult(name, failures)


def round_trip(frame: Frame) -> bytes:
    """Return the bytes of a frame after it went through the codec and back."""
    code = frame.vbucket_or_status
    return encode(
        decode(frame),
        frame.opcode,
        magic=frame.magic,
        vbucket=code,
        status=code if frame.magic.is_response else 0,
        opaque=frame.opaque,
        cas=frame.cas,
        datatype=frame.datatype,
        framing_extras=frame.framing_extras,
    ).to_bytes()


def _failures(data: bytes, expected_fields: dict[str, Any]) -> Iterator[str]:
    block = FrameSplitter().feed(data)
    if len(block) != 1 or block.frame_bytes != len(data):
        yield f"hex: found {len(block)} whole frames in {len(data)} bytes, expected exactly one"
        return
    frame = block.frame(0)
    encoded = round_trip(frame)
    if encoded != data:
        yield f"encoded again: found {encoded.hex()}, expected {data.hex()}"
    facts = facts_of(frame)
    for name, expected in expected_fields.items():
        if name in REMARKS:
            continue
        readings = find_readings(facts, name)
        if readings is None:
            yield f"{name}: found a field name that is not understood, expected {expected!r}"
        elif not readings:
            yield f"{name}: found no such part in this frame, expected {expected!r}"
        elif not any(matches(reading, expected) for reading in readings):
            yield f"{name}: found {_shown(readings)}, expected {expected!r}"


def find_readings(facts: Facts, name: str) -> list[Any] | None:
    """Return the readings of a field name: none if this frame lacks it, None if no frame has it."""
    found: list[Any] = list(facts.get(name, ()))
    for canonical in CANONICAL.get(name, ()):
        found += facts.get(canonical, ()) if not found or canonical == name else ()
    if found:
        return found
    for suffix, reading in _SUFFIXES.items():
        stem = name.removesuffix(suffix)
        if stem != name and stem:
            readings = find_readings(facts, stem)
            if readings is not None:
                return [reading(value) for value in readings if _fits(suffix, value)]
    return [] if name in KNOWN else None


_SUFFIXES = {
    "_hex": lambda value: value,
    "_text": lambda value: value,
    "_json": lambda value: value,
    "_names": lambda value: value,
    "_name": lambda value: value,
    "_bits": lambda value: value,
    "_code": lambda value: value,
    "_length": len,
    "_len": len,
    "_bytes": len,
    "_size": len,
    "_count": len,
}
"""What a field name ends with: which view of the fact before it is meant."""


def _fits(suffix: str, value: Any) -> bool:
    if _SUFFIXES[suffix] is len:
        return isinstance(value, bytes | str | list | dict | tuple)
    return suffix not in ("_name", "_names", "_bits", "_code") or isinstance(value, Number | list)


def _shown(readings: list[Any]) -> str:
    return " or ".join(
        f"{reading.value:#x}" if isinstance(reading, Number) else repr(reading)
        for reading in readings
    )
