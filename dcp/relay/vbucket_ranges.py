"""Formats numbers of vbuckets as ranges: ``0-63,70``."""

from collections.abc import Iterable


def ranges_of(vbuckets: Iterable[int]) -> str:
    """Return numbers as ranges, ascending."""
    found: list[list[int]] = []
    for vbucket in sorted(vbuckets):
        if found and found[-1][1] == vbucket - 1:
            found[-1][1] = vbucket
        else:
            found.append([vbucket, vbucket])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in found)
