"""Parses many texts of days and times at once, by the rules of `dcp.lake.apply.json_documents`."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_BASIC_DAY: Final = "^([0-9]{4})([0-9]{2})([0-9]{2})$"
_PARTIAL_DAY: Final = "^[0-9]{4}(-(0[1-9]|1[0-2])(-[0-9]{2})?)?$"
_BASIC_TIME: Final = (
    r"^([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})(\.[0-9]+)?(Z|[+-][0-9:]+)?$"
)
_DAY_AND_CLOCK: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
)
_ZONE: Final = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"


def days_of(texts: pa.StringArray) -> pa.Date32Array:
    """Raise ValueError if a text is not a day."""
    return pc.replace_substring_regex(texts, _BASIC_DAY, r"\1-\2-\3").cast(pa.date32())


def times_of(texts: pa.StringArray) -> pa.TimestampArray:
    """Return the times of texts that have a clock time of at most microseconds, of any year.

    It raises ValueError if a text is no time, or if only the parser for single texts can read it.
    """
    # RFC 3339 allows t and z. The basic form (20260131T...) becomes the extended one.
    told = pc.replace_substring_regex(pc.ascii_upper(texts), _BASIC_TIME, r"\1-\2-\3T\4:\5:\6\7\8")
    if not _all(pc.match_substring_regex(told, f"{_DAY_AND_CLOCK}{_ZONE}?$")):
        raise ValueError("another text")
    has_no_zone = pc.match_substring_regex(told, f"{_DAY_AND_CLOCK}$")
    zoned = pc.if_else(has_no_zone, pc.binary_join_element_wise(told, "Z", ""), told)
    return zoned.cast(pa.timestamp("us", tz="UTC"))


def require_partial_days(texts: pa.StringArray) -> None:
    """Raise ValueError if a text is not a year, month or day."""
    lengths = pc.utf8_length(texts)
    texts.filter(pc.equal(lengths, len("2026-01-31"))).cast(pa.date32())
    years = pc.utf8_slice_codeunits(texts, 0, len("2026"))
    is_partial = pc.match_substring_regex(texts, _PARTIAL_DAY)
    if not _all(pc.and_(is_partial, pc.not_equal(years, "0000"))):
        raise ValueError("another text")


def _all(found: pa.BooleanArray) -> bool:
    return bool(pc.all(found, min_count=0).as_py())
