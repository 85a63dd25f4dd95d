"""Statistics: what those with a documented meaning show of vbuckets, and which must be the same.

    vb_N                                  the state
    vb_N:high_seqno, vb_N:abs_high_seqno  the newest seqno
    vb_N:purge_seqno, vb_N:uuid           the purge seqno; the newest branch
    vb_N:num_entries, vb_N:I:id, :seq     the failover log

All others are the server's own: memory, timing, threads, its build. Sources: kv_engine
``docs/stats.md``, ``engines/ep/src/vbucket.cc``, ``engines/ep/src/failover-table.cc``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import VbucketState
from tests.producer_conformance.comparison import differences
from tests.producer_conformance.sightings import Sightings, VbucketSightings

_OF_VBUCKET: Final = re.compile(
    rb"vb_(\d+)(?::(high_seqno|abs_high_seqno|purge_seqno|uuid|num_entries|\d+:id|\d+:seq))?"
)
_PARTS: Final = ("id", "seq")
_STATES: Final = {state.name.lower().encode(): state for state in VbucketState}


def is_compared(name: bytes) -> bool:
    """Whether a statistic of this name has a meaning that ours must agree with."""
    return _OF_VBUCKET.fullmatch(name) is not None


def difference_of(ours: Mapping[bytes, Frame], last: Frame, recorded: Frame) -> list[str]:
    """Compare one recorded answer of a list with ours of that name.

    Where ours has none of that name only the shape is compared, and for a name that is not
    compared so is whether it has a value.
    """
    same_name = ours.get(recorded.key)
    found = same_name or replace(last, key=recorded.key, value=recorded.value)
    if not is_compared(recorded.key) and bool(found.value) == bool(recorded.value):
        found = replace(found, value=recorded.value)
    return list(differences(found, recorded))


def take_statistics(seen: Sightings, line: int, told: Mapping[bytes, bytes]) -> None:
    """Take a whole list of statistics, that was asked for at a line."""
    logs: dict[int, dict[str, int]] = {}
    for name, value in told.items():
        found = _OF_VBUCKET.fullmatch(name)
        if found is None:
            continue
        number, about = int(found[1]), seen.vbucket(int(found[1]))
        what = (found[2] or b"").decode()
        if not what:
            if value in _STATES:
                about.states.append((line, frozenset({_STATES[value]})))
        elif value.isdigit():
            logs.setdefault(number, {})[what] = int(value)
    for number, numbers in logs.items():
        _take_numbers(seen.vbucket(number), line, numbers)


def _take_numbers(about: VbucketSightings, line: int, numbers: Mapping[str, int]) -> None:
    for what, number in numbers.items():
        if what == "high_seqno":
            about.at_least.append((line, number))
            about.exact.append((line, number))
        elif what == "purge_seqno":
            about.purged.append((line, number))
        elif what == "uuid":
            about.uuids.append((line, number))
    count = numbers.get("num_entries", 0)
    if count and all(f"{index}:{part}" in numbers for index in range(count) for part in _PARTS):
        entries = (
            FailoverEntry(numbers[f"{index}:id"], numbers[f"{index}:seq"]) for index in range(count)
        )
        about.logs.append((line, FailoverLog(tuple(entries))))
