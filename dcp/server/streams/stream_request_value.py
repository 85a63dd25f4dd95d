"""Parses the JSON value of a stream request, which is a filter.

    collections   hexadecimal ids, as strings      not together with scope
    scope         a hexadecimal id, as a string
    uid           a hexadecimal manifest uid       ignored
    sid           1 to 65535                       required with stream ids, else rejected
    purge_seqno   a decimal seqno, as a string
    cts           an object                        ignored: dcplake has no cache transfers

Unknown keys are ignored, but one known key is required: ``{}`` is malformed. A value longer than
``MOST_REQUEST_JSON_BYTES`` is malformed too. Source: kv_engine
``engines/ep/src/collections/vbucket_filter.cc``.
"""

import re
from dataclasses import replace
from typing import Final

from dcp.server.model.manifest import DEFAULT_ID, Manifest
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.stream_filter import EVERYTHING, LEGACY, FilterKind, StreamFilter
from dcp.types import U16_MAX, U64_MAX
from dcp.wire.json_tree import MOST_REQUEST_JSON_BYTES, json_tree
from dcp.wire.vocabulary import Status

_KNOWN_KEYS: Final = frozenset({"collections", "scope", "uid", "sid", "purge_seqno", "cts"})
_ID: Final = re.compile(r"[0-9A-Fa-f]{1,8}")
_SEQNO: Final = re.compile(r"[0-9]{1,20}")


def parse_filter(
    value: bytes,
    manifest: Manifest,
    *,
    collections: bool,
    stream_ids: bool = False,
    sync_writes: bool = False,
) -> StreamFilter:
    """Return the filter in ``value``; raise RefusedError if it is none.

    The client negotiated ``collections`` by HELLO, ``stream_ids`` and ``sync_writes`` by
    DCP_CONTROL. ``manifest`` belongs to the vbucket.
    """
    found = _parsed(value, manifest) if collections else _legacy(value, manifest)
    if stream_ids is not (found.stream_id is not None):
        raise RefusedError(Status.DCP_STREAM_ID_INVALID)
    if sync_writes and found.kind in (FilterKind.COLLECTIONS, FilterKind.SCOPE):
        raise RefusedError(Status.NOT_SUPPORTED)
    return replace(found, sync_writes=sync_writes)


def _legacy(value: bytes, manifest: Manifest) -> StreamFilter:
    if value:
        raise RefusedError(Status.EINVAL, "Request must not include value")
    if DEFAULT_ID not in manifest.collections:
        raise RefusedError(Status.UNKNOWN_COLLECTION)
    return LEGACY


def _parsed(value: bytes, manifest: Manifest) -> StreamFilter:
    if not value:
        return EVERYTHING
    if len(value) > MOST_REQUEST_JSON_BYTES:
        found, most = len(value), MOST_REQUEST_JSON_BYTES
        raise RefusedError(
            Status.EINVAL,
            f"stream request value: found {found} bytes, expected at most {most}",
        )
    try:
        tree = json_tree(value, MOST_REQUEST_JSON_BYTES)
    except ValueError:
        raise RefusedError(Status.EINVAL) from None
    if not isinstance(tree, dict) or not tree.keys() & _KNOWN_KEYS:
        raise RefusedError(Status.EINVAL)
    purge_seqno = _number(tree.get("purge_seqno", "0"), _SEQNO, 10)
    if purge_seqno > U64_MAX or not isinstance(tree.get("cts", {}), dict):
        raise RefusedError(Status.EINVAL)
    stream_id = _stream_id(tree["sid"]) if "sid" in tree else None
    kind, ids, scope = _names(tree, manifest)
    return StreamFilter(kind, ids, scope, purge_seqno, stream_id)


def _names(
    tree: dict[str, object], manifest: Manifest
) -> tuple[FilterKind, frozenset[int], int | None]:
    if "scope" in tree:
        if "collections" in tree:
            raise RefusedError(Status.EINVAL)
        scope = _number(tree["scope"], _ID, 16)
        if scope not in manifest.scopes:
            raise RefusedError(Status.UNKNOWN_SCOPE)
        members = frozenset(each.id for each in manifest.collections_of(scope))
        return FilterKind.SCOPE, members, scope
    if "collections" not in tree:
        return FilterKind.EVERYTHING, frozenset(), None
    names = tree["collections"]
    if not isinstance(names, list):
        raise RefusedError(Status.EINVAL)
    ids = frozenset(_number(name, _ID, 16) for name in names)
    if not ids <= manifest.collections.keys():
        raise RefusedError(Status.UNKNOWN_COLLECTION)
    return FilterKind.COLLECTIONS, ids, None


def _stream_id(value: object) -> int:
    # In Python True is an int.
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RefusedError(Status.EINVAL)
    if not 1 <= value <= U16_MAX:
        raise RefusedError(Status.DCP_STREAM_ID_INVALID)
    return value


def _number(value: object, form: re.Pattern[str], base: int) -> int:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise RefusedError(Status.EINVAL)
    return int(value, base)
