"""Checks of the shape of JSON that was read from a file; they compose."""

from collections.abc import Callable, Mapping

from dcp.types import U64_MAX

Check = Callable[[object], bool]


def is_text(found: object) -> bool:
    return isinstance(found, str)


def is_flag(found: object) -> bool:
    return isinstance(found, bool)


def is_number(found: object) -> bool:
    """Return True for an integer from 0 to 2^64 - 1."""
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= U64_MAX


def is_optional(check: Check) -> Check:
    """Return a check for null, or a value that passes ``check``."""
    return lambda found: found is None or check(found)


def is_list_of(check: Check) -> Check:
    """Return a check for a list whose elements all pass ``check``."""
    return lambda found: isinstance(found, list) and all(check(each) for each in found)


def is_row_of(*checks: Check) -> Check:
    """Return a check for a list with one element for each check."""

    def check(found: object) -> bool:
        return (
            isinstance(found, list)
            and len(found) == len(checks)
            and all(check(each) for check, each in zip(checks, found, strict=True))
        )

    return check


def is_object_of(checks: Mapping[str, Check]) -> Check:
    """Return a check for an object with exactly these names."""

    def check(found: object) -> bool:
        return (
            isinstance(found, dict)
            and found.keys() == checks.keys()
            and all(check(found[name]) for name, check in checks.items())
        )

    return check
