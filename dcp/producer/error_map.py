"""The error map that GET_ERROR_MAP answers: what a client may do about each status.

Version 2, with the attributes of kv_engine ``etc/couchbase-server/kv/error_map``.
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

ERROR_MAP: Final = json.dumps(
    {
        "version": 2,
        "revision": 9,
        "errors": {
            f"{status:x}": {
                "name": status.name,
                "desc": status.name.replace("_", " ").capitalize(),
                "attrs": attributes,
            }
            for status, attributes in _ATTRIBUTES.items()
        },
    }
).encode()
