"""Words on a command line: names, numbers, times, and vbuckets (``0-63,70``)."""

import argparse
from typing import Final

from dcp.suggestions import bytes_meant
from dcp.types import U16_MAX

_MOST_DIGITS: Final = 18
"""So many digits always fit 63 bits."""


def vbucket_ranges(text: str) -> frozenset[int]:
    """Return the vbuckets of ``0-63,70``; raises argparse's error for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first = whole_number(low)
        last = whole_number(high) if dash else first
        if not first <= last <= U16_MAX:
            raise argparse.ArgumentTypeError(
                f"found {part!r}, expected numbers of vbuckets, ascending, as in 0-63,70"
            )
        found.update(range(first, last + 1))
    return frozenset(found)


def node_number(text: str) -> int:
    """Return the number of a node, 1 or more; raises argparse's error for anything else."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a node's number, 1 or more")
    return number


def name(text: str) -> str:
    """Return a name, which is not empty; raises argparse's error for anything else."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a name")
    return text


def whole_number(text: str) -> int:
    """Return a number, 0 or more; raises argparse's error for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, 0 or more")
    return int(text)


def byte_count(text: str) -> int:
    """Return a size, 0 or more; raises argparse's error for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise argparse.ArgumentTypeError(
            f"found {text!r}{bytes_meant(text)}, expected a number of bytes, up to "
            f"{_MOST_DIGITS} digits"
        )
    return int(text)


def seconds(text: str) -> float:
    """Return a time, 0 or more and perhaps with a fraction; raises argparse's error otherwise."""
    whole, point, fraction = text.partition(".")
    digits = whole + fraction if point else whole
    if not (digits.isascii() and digits.isdecimal() and whole and len(text) <= 12):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected seconds, 0 or more, as in 2.5")
    return float(text)
