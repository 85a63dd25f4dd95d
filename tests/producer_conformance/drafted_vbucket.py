"""A vbucket of a drafted scenario: what was seen of it, cut into branches, each with its items."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dcp.types import FailoverEntry, FailoverLog

Raw = dict[str, Any]
"""A part of a scenario, as its file has it."""
_UNKNOWN_LOG: Final = FailoverLog((FailoverEntry(1, 0),))


@dataclass(slots=True)
class DraftedVbucket:
    """What was seen of a vbucket, with the line from which it was there.

    ``seen`` has the line of the request that found it first: it says on which branch it was found.
    ``shown`` are the seqnos of items that streams showed, ``listed`` the lines of lists of seqnos
    that have the vbucket, ``checkpoints`` those of markers that begin one.
    """

    logs: list[tuple[int, FailoverLog]] = field(default_factory=list)
    seen: list[tuple[int, int, Raw]] = field(default_factory=list)
    shown: set[int] = field(default_factory=set)
    listed: list[int] = field(default_factory=list)
    checkpoints: set[int] = field(default_factory=set)

    def steps(self, number: int) -> Iterator[Raw]:
        """Yield how it came to be what it was seen to be: a set-up for each branch, and writes."""
        before: dict[int, Raw] = {}
        logs = self.logs or [(self.listed[0], _UNKNOWN_LOG)]
        branches = [one for at, one in enumerate(logs) if not at or one[1] != logs[at - 1][1]]
        for at, (line, log) in enumerate(branches):
            start = line if at else min([line, *self.listed, *(asked for asked, _, _ in self.seen)])
            end = branches[at + 1][0] if at + 1 < len(branches) else sys.maxsize
            older = {entry.vb_uuid for _, known in branches[:at] for entry in known.entries}
            new = [entry.seqno for entry in log.entries if entry.vb_uuid not in older]
            is_kept = any(entry.vb_uuid in older for entry in log.entries)
            keep_up_to = min([*new, max(before, default=0)]) if is_kept else 0
            kept = {seqno: item for seqno, item in before.items() if seqno <= keep_up_to}
            items, there = self._items(start, end, max(kept, default=0))
            first = [item for seqno, item in items.items() if there[seqno] <= start]
            yield {
                "before": start,
                "do": "set_up",
                "vbucket": number,
                "high_seqno": first[-1]["seqno"] if first else max(kept, default=0),
                "failover_log": [[entry.vb_uuid, entry.seqno] for entry in log.entries],
                "keep_up_to": keep_up_to,
                "items": first,
            }
            for later in sorted({each for each in there.values() if each > start}):
                come = [item for seqno, item in items.items() if there[seqno] == later]
                yield {
                    "before": later,
                    "do": "write",
                    "vbucket": number,
                    "checkpoint_begins": later in self.checkpoints,
                    "items": come,
                }
            before = kept | items

    def _items(self, start: int, end: int, above: int) -> tuple[dict[int, Raw], dict[int, int]]:
        """Return a branch's items by seqno, and from which line each was there."""
        items: dict[int, Raw] = {}
        there: dict[int, int] = {}
        for asked, line, item in self.seen:
            seqno = item["seqno"]
            if not start <= asked < end or seqno <= above:
                continue
            there[seqno] = min(line, there.get(seqno, line))
            items[seqno] = _merged(items.get(seqno, item), item)
        items = dict(sorted(items.items()))
        earliest = sys.maxsize
        for seqno in reversed(items):
            earliest = there[seqno] = min(earliest, there[seqno])
        for item in items.values():
            prepare = items.get(item.get("prepared_seqno", 0), {})
            if "is" not in item and "cas" not in item and "value" in prepare:
                item |= {key: prepare[key] for key in prepare if key in _OF_A_DOCUMENT}
        return items, there


_OF_A_DOCUMENT: Final = ("rev", "cas", "value", "datatype", "flags", "expiry")


def _merged(one: Raw, other: Raw) -> Raw:
    """Return the whole of what two connections were shown; one perhaps without the value."""
    fuller, less = sorted((one, other), key=_fullness, reverse=True)
    return less | fuller if less.get("key") == fuller.get("key") else fuller


def _fullness(item: Raw) -> tuple[bool, bool, bool, int, int]:
    """Return how much is known: an item at all, its CAS, that it expired, its value as stored."""
    is_shown = not item.get("key", "").startswith("unseen ")
    is_expiration, value = item.get("is") == "expiration", item.get("value", "")
    return is_shown, "cas" in item, is_expiration, item.get("datatype", 0), len(value)
