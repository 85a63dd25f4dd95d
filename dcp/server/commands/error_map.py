"""Error maps for GET_ERROR_MAP: how a client should react to each status.

Attributes are those of kv_engine ``etc/couchbase/kv/error_maps``, the same in versions 1 and 2.
"""

import json
from typing import Final

from dcp.wire.vocabulary import Status

_ATTRIBUTES: Final[dict[Status, tuple[str, ...]]] = {
    Status.SUCCESS: ("success",),
    Status.KEY_ENOENT: ("item-only",),
    Status.KEY_EEXISTS: ("item-only",),
    Status.E2BIG: ("item-only", "invalid-input"),
    Status.EINVAL: ("internal", "invalid-input"),
    Status.NOT_STORED: ("item-only",),
    Status.NOT_MY_VBUCKET: ("fetch-config", "invalid-input"),
    Status.NO_BUCKET: ("conn-state-invalidated",),
    Status.AUTH_STALE: ("conn-state-invalidated", "auth"),
    Status.AUTH_ERROR: ("conn-state-invalidated", "auth"),
    Status.AUTH_CONTINUE: ("special-handling",),
    Status.ERANGE: ("invalid-input",),
    Status.ROLLBACK: ("dcp", "special-handling"),
    Status.EACCESS: ("support",),
    Status.UNKNOWN_FRAME_INFO: ("support",),
    Status.UNKNOWN_COMMAND: ("support",),
    Status.ENOMEM: ("temp", "retry-later"),
    Status.NOT_SUPPORTED: ("support",),
    Status.EINTERNAL: ("internal", "conn-state-invalidated"),
    Status.EBUSY: ("temp", "retry-now"),
    Status.ETMPFAIL: ("temp", "retry-now"),
    Status.UNKNOWN_COLLECTION: ("item-only", "fetch-config"),
    Status.UNKNOWN_SCOPE: ("item-only", "fetch-config"),
    Status.DURABILITY_INVALID_LEVEL: ("invalid-input",),
    Status.DURABILITY_IMPOSSIBLE: ("item-only", "invalid-input"),
    Status.SYNC_WRITE_IN_PROGRESS: ("item-only", "retry-later"),
    Status.SYNC_WRITE_AMBIGUOUS: ("item-only",),
    Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS: ("item-only", "retry-later"),
}

# Revisions go on from kv_engine's own files (``daemon/error_map_manager.cc``).
_REVISIONS: Final = {1: 13, 2: 9}


def error_map(most_version: int) -> bytes | None:
    """Return the newest map that a client can read, as JSON; None if it can read none."""
    return _ERROR_MAPS.get(min(most_version, max(_ERROR_MAPS)))


def _as_json(version: int, revision: int) -> bytes:
    errors = {
        f"{status:x}": {
            "name": status.name,
            "desc": status.name.replace("_", " ").capitalize(),
            "attrs": attributes,
        }
        for status, attributes in _ATTRIBUTES.items()
    }
    return json.dumps({"version": version, "revision": revision, "errors": errors}).encode()


_ERROR_MAPS: Final = {version: _as_json(version, found) for version, found in _REVISIONS.items()}
