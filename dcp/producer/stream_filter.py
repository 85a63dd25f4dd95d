"""The JSON value of a stream request: which collections, which purge seqno.

Only the default scope and collection exist so far, so every valid filter lets everything pass.
Source: kv_engine ``engines/ep/src/collections/vbucket_filter.cc``.
"""

import json
from dataclasses import dataclass
from typing import Final

from dcp.types import U64_MAX
from dcp.wire.vocabulary import Status

_KNOWN_KEYS: Final = frozenset({"collections", "scope", "uid", "sid", "purge_seqno", "cts"})


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The purge seqno up to which the client knows of all deletions; does it name collections?"""

    purge_seqno: int = 0
    names_collections: bool = False


def parse_filter(value: bytes, *, collections: bool) -> StreamFilter | Status:
    """Return the filter, or the status that the request must be refused with."""
    if not value:
        return StreamFilter()
    try:
        tree = json.loads(value)
    except (ValueError, RecursionError):
        return Status.EINVAL
    if not collections or not isinstance(tree, dict) or not tree.keys() & _KNOWN_KEYS:
        return Status.EINVAL
    if "sid" in tree:
        return Status.DCP_STREAM_ID_INVALID
    status = _check_names(tree)
    if status is not Status.SUCCESS:
        return status
    purge = tree.get("purge_seqno", "0")
    if not isinstance(purge, str) or not purge.isdecimal() or int(purge) > U64_MAX:
        return Status.EINVAL
    return StreamFilter(int(purge), bool({"collections", "scope"} & tree.keys()))


def _check_names(tree: dict[str, object]) -> Status:
    names = tree.get("collections")
    scope = tree.get("scope")
    if names is not None and scope is not None:
        return Status.EINVAL
    if scope is not None and _hex(scope) != 0:
        return Status.EINVAL if _hex(scope) is None else Status.UNKNOWN_SCOPE
    if names is None:
        return Status.SUCCESS
    if not isinstance(names, list) or not names or None in map(_hex, names):
        return Status.EINVAL
    return Status.SUCCESS if all(_hex(name) == 0 for name in names) else Status.UNKNOWN_COLLECTION


def _hex(value: object) -> int | None:
    try:
        return int(value, 16) if isinstance(value, str) else None
    except ValueError:
        return None
