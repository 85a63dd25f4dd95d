"""The HTTP endpoints by which clients find a cluster. No I/O.

- ``/pools/default/bs/<bucket>``: an endless response with a map at every change, for gocbcore.
- ``/pools/default/b/<bucket>``: one map, for dcplake.
- ``/metrics``: for Prometheus, as on a Couchbase node; ``/figures.json`` has the same as JSON.
- The other endpoints: for SDKs on top of gocbcore.

All need a user, by Basic credentials or certificate.
"""

import base64
import binascii
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from dcp.records import plain
from dcp.server.bucket.assembly import Bucket
from dcp.server.bucket.auth import UserStore
from dcp.server.bucket.node_figures import node_exposition
from dcp.server.commands.dcp_statistics import connection_figures
from dcp.server.model.refused_error import RefusedError
from dcp.server.node.http_messages import HttpRequest, HttpResponse

MAP_SEPARATOR: Final = b"\n\n\n\n"
"""Follows each document in the stream of maps."""

_ALLOWED: Final = ("GET", "HEAD")
_NAME: Final = None
"""Placeholder of the bucket's name in a path."""


def respond(
    request: HttpRequest, bucket: Bucket, node: int, certified: str | None = None
) -> HttpResponse:
    """Return the answer of ``node``; the caller holds the bucket's lock.

    ``certified`` is the user that the client's certificate names, if any.
    """
    user = certified or user_of(request.authorization, bucket.users)
    if user is None:
        fields = {"WWW-Authenticate": 'Basic realm="Couchbase", charset="UTF-8"'}
        return _refusal(HTTPStatus.UNAUTHORIZED, "expected Basic credentials of a user", fields)
    # The user is checked first: as in Couchbase, strangers do not learn which paths exist.
    endpoint = _endpoint_of(request.segments, bucket.name)
    if endpoint is None:
        return _refusal(HTTPStatus.NOT_FOUND, "Requested resource not found.")
    if request.method not in _ALLOWED:
        fields = {"Allow": ", ".join(_ALLOWED)}
        return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD", fields)
    return endpoint(bucket, node, user)


def user_of(authorization: str, users: UserStore) -> str | None:
    """Return the user of an Authorization field; None if name or password are wrong."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    try:
        user = users.check_plain(b"\0%b\0%b" % (name, password))
    except RefusedError:
        return None
    return user if colon else None


def _endpoint_of(segments: tuple[str, ...], bucket: str) -> "_Endpoint | None":
    for path, endpoint in _ENDPOINTS.items():
        wanted = tuple(bucket if part is _NAME else part for part in path)
        if segments == wanted:
            return endpoint
    return None


def _whoami(_bucket: Bucket, _node: int, user: str) -> HttpResponse:
    return _json({"id": user, "domain": "local", "roles": [{"role": "admin"}]})


def _pools(bucket: Bucket, _node: int, _user: str) -> HttpResponse:
    return _json(
        {
            "pools": [{"name": "default", "uri": f"/pools/default?uuid={bucket.map.bucket_uuid}"}],
            "isAdminCreds": True,
            "isEnterprise": True,
            "implementationVersion": f"{bucket.settings.version}-enterprise",
            "uuid": bucket.map.bucket_uuid,
        }
    )


def _bucket(bucket: Bucket, node: int, _user: str) -> HttpResponse:
    tree = json.loads(bucket.map.as_json(node))
    for entry in tree["nodes"]:
        entry |= {
            "status": "healthy",
            "clusterMembership": "active",
            "version": bucket.settings.version,
        }
    backend = bucket.map.bucket_type.storage_backend
    if backend is not None:
        tree["storageBackend"] = "magma" if bucket.settings.history_retention_bytes else backend
    return _json(
        tree
        | {
            "replicaNumber": tree["vBucketServerMap"]["numReplicas"],
            "streamingUri": f"/pools/default/bs/{bucket.name}",
        }
    )


def _terse_map(bucket: Bucket, node: int, _user: str) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, bucket.map.as_json(node), _JSON_FIELDS)


def _metrics(bucket: Bucket, node: int, _user: str) -> HttpResponse:
    text = node_exposition(connection_figures(bucket, node), bucket.process_figures(node))
    fields = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    return HttpResponse(HTTPStatus.OK, text.encode(), fields)


def _figures(bucket: Bucket, node: int, _user: str) -> HttpResponse:
    found = bucket.process_figures(node)
    return _json(plain({"connections": connection_figures(bucket, node), found.kind: found}))


def _map_stream(_bucket: Bucket, _node: int, _user: str) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, fields=_JSON_FIELDS, streams_map=True)


_JSON_FIELDS: Final = {"Content-Type": "application/json"}
_Endpoint = Callable[[Bucket, int, str], HttpResponse]
_ENDPOINTS: Final[dict[tuple[str | None, ...], _Endpoint]] = {
    ("whoami",): _whoami,
    ("metrics",): _metrics,
    ("figures.json",): _figures,
    ("pools",): _pools,
    ("pools", "default", "buckets", _NAME): _bucket,
    ("pools", "default", "b", _NAME): _terse_map,
    ("pools", "default", "bs", _NAME): _map_stream,
}


def _json(tree: dict[str, object]) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, json.dumps(tree).encode(), _JSON_FIELDS)


def _refusal(status: HTTPStatus, reason: str, fields: dict[str, str] | None = None) -> HttpResponse:
    body = json.dumps({"message": reason}).encode()
    return HttpResponse(status, body, _JSON_FIELDS | (fields or {}))
